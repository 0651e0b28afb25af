// However often two data planes connect and disconnect, every send ends and a new connection works:
// UCX leaves endpoints whose other end is closed (README, "Endpoints are pinged"), over which no
// send would end.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/base/random.h"
#include "common/transport/data_plane.h"
#include "common/transport/testing/test_messages.h"

namespace baton {
namespace {

using testing::Inbox;
using testing::Outbox;
using testing::TestMessage;

// Without pings some send of these never ends, over TCP.
constexpr int kRounds = 8;
constexpr int kTurns = 10;

class HalfOpenTest : public ::testing::Test {
 protected:
  static DataPlaneOptions Options() {
    DataPlaneOptions options = testing::TestOptions();
    options.silence_us = 600'000;
    return options;
  }

  HalfOpenTest() : a_(*DataPlane::Create(Options())), b_(*DataPlane::Create(Options())) {
    EXPECT_TRUE(a_->Register(MessageKind::kKvPages, &inbox_a_).ok());
    EXPECT_TRUE(b_->Register(MessageKind::kKvPages, &inbox_b_).ok());
  }

  static PeerId Connect(DataPlane& from, const DataPlane& to) {
    const auto peer = from.Connect(to.address());
    EXPECT_TRUE(peer.ok()) << peer.status();
    return *peer;
  }
  // Either side connects to the other or disconnects, in random order.
  void Churn() {
    std::vector<PeerId> from_a, from_b;
    for (int turn = 0; turn < kTurns; ++turn) {
      const bool a = random_.Chance(0.5);
      DataPlane& from = a ? *a_ : *b_;
      std::vector<PeerId>& peers = a ? from_a : from_b;
      if (random_.Chance(0.5)) {
        peers.push_back(Connect(from, a ? *b_ : *a_));
      } else if (!peers.empty()) {
        from.Disconnect(peers.back());
        peers.pop_back();
      }
    }
    const PeerId there = Connect(*a_, *b_);
    const PeerId back = Connect(*b_, *a_);
    for (const PeerId peer : from_a) a_->Disconnect(peer);
    for (const PeerId peer : from_b) b_->Disconnect(peer);
    EndsOk(*a_, there);
    EndsOk(*b_, back);
    a_->Disconnect(there);
    b_->Disconnect(back);
  }
  // A message that is large enough for a rendezvous or a pull, awaited; whether it was sent. One of
  // an endpoint that was given up has an error.
  bool EndsOk(DataPlane& from, PeerId to) {
    const TestMessage message({.id = ++sent_, .payload_bytes = 1 << 20}, 1);
    Outbox outbox;
    from.Send(to, message.ToOutgoing(outbox.Expect()));
    const absl::Status status = outbox.WaitForAll().front();
    EXPECT_TRUE(status.ok() || absl::IsUnavailable(status) || absl::IsNotFound(status)) << status;
    return status.ok();
  }
  // Tried again as workers do, once it has failed.
  void ExpectToWork(DataPlane& from, const DataPlane& to) {
    for (int tries = 0; tries < 10; ++tries) {
      if (EndsOk(from, Connect(from, to))) return;
    }
    ADD_FAILURE() << "no connection works any more";
  }

  Inbox inbox_a_;  // An inbox belongs to one data thread.
  Inbox inbox_b_;
  std::unique_ptr<DataPlane> a_;
  std::unique_ptr<DataPlane> b_;
  Random random_{1};
  uint64_t sent_ = 0;
};

TEST_F(HalfOpenTest, EverySendEndsAndANewConnectionWorks) {
  for (int round = 0; round < kRounds; ++round) Churn();
  ExpectToWork(*a_, *b_);
  ExpectToWork(*b_, *a_);
}

}  // namespace
}  // namespace baton
