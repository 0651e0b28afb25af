// What the data plane does with messages that are not Baton's, sent by a bare UCX worker.
#include <gtest/gtest.h>
#include <ucp/api/ucp.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/transport/data_plane.h"
#include "common/transport/frame.h"
#include "common/transport/gate.h"
#include "common/transport/peer_address.h"
#include "common/transport/pull_wire.h"
#include "common/transport/testing/test_messages.h"

namespace baton {
namespace {

// A UCX worker with one endpoint; its progress is the test's thread.
class BareSender {
 public:
  explicit BareSender(const std::string& ucx_address) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM;
    EXPECT_EQ(ucp_init(&params, nullptr, &context_), UCS_OK);
    ucp_worker_params_t worker_params{};
    EXPECT_EQ(ucp_worker_create(context_, &worker_params, &worker_), UCS_OK);
    ucp_ep_params_t endpoint_params{};
    endpoint_params.field_mask =
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    endpoint_params.address = reinterpret_cast<const ucp_address_t*>(ucx_address.data());
    endpoint_params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    EXPECT_EQ(ucp_ep_create(worker_, &endpoint_params, &endpoint_), UCS_OK);
  }
  ~BareSender() {
    ucp_request_param_t params{};
    Wait(ucp_ep_close_nbx(endpoint_, &params));
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }

  void Send(std::vector<std::byte> header, std::vector<std::byte> payload) {
    ucp_request_param_t params{};
    Wait(ucp_am_send_nbx(endpoint_, kActiveMessageId, header.data(), header.size(), payload.data(),
                         payload.size(), &params));
  }
  void Progress() { ucp_worker_progress(worker_); }

 private:
  void Wait(ucs_status_ptr_t request) {
    if (!UCS_PTR_IS_PTR(request)) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) Progress();
    ucp_request_free(request);
  }

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
};

std::vector<std::byte> Header(const Frame& frame, size_t more_bytes) {
  std::vector<std::byte> header(sizeof(frame) + more_bytes);
  std::memcpy(header.data(), &frame, sizeof(frame));
  return header;
}

TEST(MalformedMessageTest, IsDroppedAndCounted) {
  absl::StatusOr<std::unique_ptr<DataPlane>> plane = DataPlane::Create(testing::TestOptions());
  ASSERT_TRUE(plane.ok()) << plane.status();
  testing::Inbox inbox;
  ASSERT_TRUE((*plane)->Register(MessageKind::kKvPages, &inbox).ok());
  const absl::StatusOr<PeerAddress> address = OpenPeerAddress((*plane)->address());
  ASSERT_TRUE(address.ok());
  {
    BareSender sender(address->ucx);
    const std::vector<std::vector<std::byte>> headers = {
        {},
        std::vector<std::byte>(3),
        std::vector<std::byte>(64),
        Header({.magic = 0x12345678}, 24),
        Header({.version = kFrameVersion + 1}, 24),
        Header({.kind = 1}, 24),
        Header({.kind = kMaxMessageKinds}, 24),
        Header({.kind = kPullOfferKind}, 24),
        Header({.kind = kGoodbyeKind}, 8),
        Header({.kind = 0}, kMaxMessageHeaderBytes + 1),
    };
    for (const std::vector<std::byte>& header : headers) {
      for (size_t payload_bytes : {0, 100, 1 << 20}) {
        sender.Send(header, std::vector<std::byte>(payload_bytes));
      }
    }
    // A goodbye without a greeting before it.
    sender.Send(Header({.kind = kGoodbyeKind}, sizeof(Goodbye)), {});
    // A greeting with an invalid address.
    sender.Send(Header({.kind = kGreetingKind}, 0), std::vector<std::byte>(100));
    while ((*plane)->counters().messages_malformed < 3 * headers.size()) sender.Progress();
    EXPECT_EQ((*plane)->counters().messages_malformed, 3 * headers.size());
  }
  (*plane)->Shutdown();
  EXPECT_EQ((*plane)->counters().messages_received, 0u);
}

// A message of data as a peer would send it, with this pass.
std::vector<std::byte> DataUnder(uint64_t session, uint64_t id) {
  const Frame frame{.kind = static_cast<uint16_t>(MessageKind::kKvPages)};
  const testing::TestHeader said{.id = id, .payload_bytes = 100};
  std::vector<std::byte> message(sizeof(frame) + sizeof(said));
  std::memcpy(message.data(), &frame, sizeof(frame));
  std::memcpy(message.data() + sizeof(frame), &said, sizeof(said));
  return WithPass(session, message);
}

TEST(StrangerTest, WithASecretOnlyThoseWhoProveItAreHeard) {
  DataPlaneOptions options = testing::TestOptions();
  options.secret = MakePlaneSecret();
  absl::StatusOr<std::unique_ptr<DataPlane>> plane = DataPlane::Create(options);
  ASSERT_TRUE(plane.ok()) << plane.status();
  testing::Inbox inbox;
  ASSERT_TRUE((*plane)->Register(MessageKind::kKvPages, &inbox).ok());
  const absl::StatusOr<PeerAddress> address = OpenPeerAddress((*plane)->address());
  ASSERT_TRUE(address.ok());
  {
    BareSender sender(address->ucx);
    uint64_t strangers = 0;
    const auto dropped = [&](std::vector<std::byte> header, std::vector<std::byte> payload) {
      sender.Send(std::move(header), std::move(payload));
      ++strangers;
      while ((*plane)->counters().unproven_messages < strangers) sender.Progress();
    };
    const std::vector<std::byte> payload = testing::Pattern(1, 100);
    const uint64_t session = 77;
    // Without a session; with an unknown session; eager and as a rendezvous.
    const std::vector<std::byte> bare = DataUnder(session, 1);
    dropped({bare.begin() + sizeof(Pass), bare.end()}, payload);
    dropped(DataUnder(session, 1), payload);
    dropped(DataUnder(session, 1), std::vector<std::byte>(1 << 20));
    // Greetings: without a proof, by another secret, and for another address.
    // UCX asserts that addresses are its own: this one is refused before it sees it.
    const std::string sealed = "no address of Baton's";
    const std::span<const std::byte> own = std::as_bytes(std::span<const char>(sealed));
    const std::vector<std::byte> own_bytes(own.begin(), own.end());
    const GreetingSender greeting_sender{0, 1, 2, 3};
    const auto greeting = [&](const std::string& secret, std::span<const std::byte> of) {
      return WithPass(session, EncodePull(kGreetingKind, greeting_sender,
                                          ProofOf(secret, session, greeting_sender, of)));
    };
    dropped(WithPass(session, EncodePull(kGreetingKind, greeting_sender)), own_bytes);
    dropped(greeting("guess", own), own_bytes);
    dropped(greeting(address->secret, own.first(3)), own_bytes);
    dropped(DataUnder(session, 1), payload);
    // The right one, and what comes under it.
    sender.Send(greeting(address->secret, own), own_bytes);
    sender.Send(DataUnder(session, 1), payload);
    while ((*plane)->counters().messages_received < 1) sender.Progress();
    // Played again, on the same connection or another.
    dropped(greeting(address->secret, own), own_bytes);
    BareSender other(address->ucx);
    other.Send(greeting(address->secret, own), own_bytes);
    ++strangers;
    while ((*plane)->counters().unproven_messages < strangers) {
      sender.Progress();
      other.Progress();
    }
    EXPECT_EQ((*plane)->counters().unproven_messages, strangers);
  }
  (*plane)->Shutdown();
  EXPECT_EQ((*plane)->counters().messages_received, 1u);
}

TEST(PeerAddressTest, RoundTripsAndNamesWhatIsWrong) {
  const std::string sealed = SealPeerAddress("some address");
  EXPECT_EQ(OpenPeerAddress(sealed)->ucx, "some address");
  EXPECT_EQ(OpenPeerAddress(sealed)->secret, "");
  const std::string secret = SealPeerAddress("some address", "secret");
  EXPECT_EQ(OpenPeerAddress(secret)->ucx, "some address");
  EXPECT_EQ(OpenPeerAddress(secret)->secret, "secret");
  for (const char secret_bytes : {char{0}, char{18}, char{19}}) {
    std::string wrong = secret;
    wrong[6] = secret_bytes;
    EXPECT_FALSE(OpenPeerAddress(wrong).ok()) << int{secret_bytes};
  }
  std::string versioned = sealed;
  versioned[4] = 9;
  EXPECT_NE(OpenPeerAddress(versioned).status().message().find("version 9"), std::string::npos);
  EXPECT_FALSE(OpenPeerAddress(sealed.substr(0, 24)).ok());
}

}  // namespace
}  // namespace baton
