// Pulls between two data planes of one process, over UCX's TCP. That they carry what UCX carries,
// and end as that ends, is what data_plane_test and data_plane_process_test show, which also run
// with them.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "common/base/sync.h"
#include "common/transport/data_plane.h"
#include "common/transport/testing/test_messages.h"

namespace baton {
namespace {

using testing::Inbox;
using testing::Outbox;
using testing::TestHeader;
using testing::TestMessage;

constexpr size_t kMessageBytes = 1 << 20;

class PullTest : public ::testing::Test {
 protected:
  void Start(bool sender_pulls, bool receiver_pulls) {
    sender_ = *DataPlane::Create({.pull = sender_pulls});
    receiver_ = *DataPlane::Create({.pull = receiver_pulls});
    ASSERT_TRUE(receiver_->Register(MessageKind::kKvPages, &inbox_).ok());
    peer_ = *sender_->Connect(receiver_->address());
  }

  void Send(size_t bytes, uint32_t runs = 1) {
    const TestHeader header{.id = ++id_, .payload_bytes = bytes, .receive_runs = 3};
    messages_.push_back(std::make_unique<TestMessage>(header, runs));
    sender_->Send(peer_, messages_.back()->ToOutgoing(outbox_.Expect()));
  }

  // One after the other, until the two have agreed on pulls, which takes a round trip.
  void SendUntilPulled() {
    while (receiver_->counters().bytes_pulled == 0) {
      Send(kMessageBytes);
      ASSERT_TRUE(inbox_.WaitForId(id_).intact);
    }
  }

  Inbox inbox_;
  Outbox outbox_;
  std::vector<std::unique_ptr<TestMessage>> messages_;
  uint64_t id_ = 0;
  std::unique_ptr<DataPlane> sender_;
  std::unique_ptr<DataPlane> receiver_;
  PeerId peer_ = 0;
};

TEST_F(PullTest, ReadsLargeMessagesOfOneRunAndNoOthers) {
  Start(true, true);
  SendUntilPulled();
  const uint64_t before = receiver_->counters().bytes_pulled;
  Send(kMessageBytes);
  Send(kMessageBytes, /*runs=*/2);
  Send(1000);
  for (const Inbox::Arrival& arrival : inbox_.WaitFor(id_)) {
    EXPECT_TRUE(arrival.status.ok() && arrival.intact) << arrival.header.id;
  }
  EXPECT_EQ(receiver_->counters().bytes_pulled, before + kMessageBytes);
  for (const absl::Status& status : outbox_.WaitForAll()) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(PullTest, NeedsBothToWantIt) {
  for (const bool sender_pulls : {false, true}) {
    Start(sender_pulls, !sender_pulls);
    for (int i = 0; i < 8; ++i) {
      Send(kMessageBytes);
      EXPECT_TRUE(inbox_.WaitForId(id_).intact);
    }
    EXPECT_EQ(receiver_->counters().bytes_pulled, 0u);
  }
}

// A sender that takes its payload back while the receiver is busy has it at once, and may use it.
TEST_F(PullTest, AWithdrawnPayloadIsNobodysMessage) {
  Start(true, true);
  SendUntilPulled();
  Notification blocked;
  Notification go_on;
  ASSERT_TRUE(receiver_->Post([&] {
    blocked.Notify();
    go_on.WaitForNotification();
  }));
  blocked.WaitForNotification();
  const uint64_t first = id_ + 1;
  for (int i = 0; i < 4; ++i) Send(kMessageBytes);
  sender_->Disconnect(peer_);
  const std::vector<absl::Status> statuses = outbox_.WaitForAll();
  for (uint64_t id = first; id <= id_; ++id) {
    EXPECT_EQ(statuses[id - 1].code(), absl::StatusCode::kCancelled) << statuses[id - 1];
    std::fill(messages_[id - 1]->content.begin(), messages_[id - 1]->content.end(), std::byte{0});
  }
  go_on.Notify();
  receiver_->Shutdown();
  for (const Inbox::Arrival& arrival : inbox_.WaitFor(first - 1)) {
    EXPECT_EQ(arrival.status.ok(), arrival.header.id < first) << arrival.header.id;
  }
}

// Memory that the kernel reads for no other process, like device memory mapped into a process.
TEST_F(PullTest, SendsWhatCannotBeReadWhereItLies) {
  const int secret = static_cast<int>(syscall(SYS_memfd_secret, 0));
  if (secret < 0 || ftruncate(secret, kMessageBytes) != 0) {
    GTEST_SKIP() << "this kernel has no secret memory";
  }
  void* memory = mmap(nullptr, kMessageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, secret, 0);
  close(secret);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no secret memory may be locked";
  Start(true, true);
  SendUntilPulled();
  const uint64_t before = receiver_->counters().bytes_pulled;
  const TestHeader header{.id = ++id_, .payload_bytes = kMessageBytes, .receive_runs = 1};
  messages_.push_back(std::make_unique<TestMessage>(header, 1));
  const std::span<std::byte> payload(static_cast<std::byte*>(memory), kMessageBytes);
  std::copy(messages_.back()->content.begin(), messages_.back()->content.end(), payload.begin());
  Outgoing message = messages_.back()->ToOutgoing(outbox_.Expect());
  message.runs = {payload};
  sender_->Send(peer_, std::move(message));
  const Inbox::Arrival arrival = inbox_.WaitForId(id_);
  EXPECT_TRUE(arrival.status.ok() && arrival.intact) << arrival.status;
  EXPECT_EQ(receiver_->counters().bytes_pulled, before);
  for (const absl::Status& status : outbox_.WaitForAll()) EXPECT_TRUE(status.ok()) << status;
  munmap(memory, kMessageBytes);
}

}  // namespace
}  // namespace baton
