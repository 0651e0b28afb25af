// Two data planes in two processes, one of which dies. BUILD.bazel runs these tests once per
// setting of UCX_TLS.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <vector>

#include "common/base/sync.h"
#include "common/base/testing/child_process.h"
#include "common/transport/data_plane.h"
#include "common/transport/testing/test_messages.h"

namespace baton {
namespace {

using testing::ChildProcess;
using testing::Inbox;
using testing::Outbox;
using testing::TestHeader;
using testing::TestMessage;

constexpr char kTestPeer[] = "common/transport/test_peer";

class DataPlaneProcessTest : public ::testing::Test {
 protected:
  DataPlaneProcessTest() {
    absl::StatusOr<std::unique_ptr<DataPlane>> plane = DataPlane::Create(testing::TestOptions());
    EXPECT_TRUE(plane.ok()) << plane.status();
    plane_ = *std::move(plane);
    EXPECT_TRUE(plane_->Register(MessageKind::kKvPages, &inbox_).ok());
  }

  // Starts test_peer and connects to it.
  void Start(const std::vector<std::string>& mode) {
    std::vector<std::string> arguments = {kTestPeer};
    arguments.insert(arguments.end(), mode.begin(), mode.end());
    child_ = std::make_unique<ChildProcess>(arguments);
    absl::StatusOr<PeerId> peer = plane_->Connect(testing::FromHex(child_->ReadLine()));
    ASSERT_TRUE(peer.ok()) << peer.status();
    peer_ = *peer;
    child_->WriteLine(testing::ToHex(plane_->address()));
    EXPECT_EQ(child_->ReadLine(), "connected");
  }

  void Send(const TestHeader& header, uint32_t send_runs) {
    messages_.push_back(std::make_unique<TestMessage>(header, send_runs));
    plane_->Send(peer_, messages_.back()->ToOutgoing(outbox_.Expect()));
  }

  Inbox inbox_;
  Outbox outbox_;
  std::vector<std::unique_ptr<TestMessage>> messages_;
  std::unique_ptr<DataPlane> plane_;
  std::unique_ptr<ChildProcess> child_;
  PeerId peer_ = 0;
};

TEST_F(DataPlaneProcessTest, EchoesEverySizeAndShapeByteExact) {
  Start({"echo"});
  uint64_t id = 0;
  for (size_t size : {0, 1, 600, 8192, 10000, 70000, 1 << 20, 5000001, 16 << 20}) {
    for (uint32_t runs : {1u, 3u, 64u}) {
      Send({.id = ++id, .payload_bytes = size, .receive_runs = 1 + 63 / runs}, runs);
    }
  }
  for (const Inbox::Arrival& arrival : inbox_.WaitFor(id)) {
    EXPECT_TRUE(arrival.status.ok() && arrival.intact) << arrival.header.payload_bytes;
  }
  for (const absl::Status& status : outbox_.WaitForAll()) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(DataPlaneProcessTest, KilledReceiverEndsEverySendOnce) {
  Start({"echo"});
  Send({.id = 1, .payload_bytes = 100}, 1);
  inbox_.WaitFor(1);
  Notification failed;
  PeerId failed_peer = 0;
  plane_->SetPeerErrorHandler([&](PeerId peer, const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    failed_peer = peer;
    failed.Notify();
  });
  child_->Signal(SIGSTOP);  // So that what follows is outstanding when it dies.
  for (uint64_t id = 2; id < 66; ++id) Send({.id = id, .payload_bytes = 1 << 20}, 5);
  child_->Kill();
  const std::vector<absl::Status> statuses = outbox_.WaitForAll();
  failed.WaitForNotification();
  plane_->SetPeerErrorHandler(nullptr);
  EXPECT_EQ(failed_peer, peer_);
  size_t unavailable = 0;
  for (const absl::Status& status : statuses) {
    if (status.code() == absl::StatusCode::kUnavailable) ++unavailable;
  }
  EXPECT_GE(unavailable, 50u);  // A window of 8 MiB may have left.
  EXPECT_EQ(plane_->counters().peer_failures, 1u);
  Send({.id = 99, .payload_bytes = 10}, 1);
  EXPECT_FALSE(outbox_.WaitForAll().back().ok());
  EXPECT_EQ(outbox_.duplicates(), 0u);
  // Others are not concerned.
  Start({"echo"});
  Send({.id = 100, .payload_bytes = 1 << 20}, 3);
  EXPECT_TRUE(inbox_.WaitForId(100).intact);
}

TEST_F(DataPlaneProcessTest, KilledSenderEndsTheReceiveOnce) {
  for (const uint64_t id : {1, 7}) {
    inbox_.SetHeaderHook([this](const TestHeader&) { child_->Kill(); });
    Start({"send", std::to_string(id), std::to_string(16 << 20), std::to_string(id)});
    const Inbox::Arrival arrival = inbox_.WaitForId(id);
    // All may have been there already; a part of it must not look like all.
    EXPECT_EQ(arrival.status.ok(), arrival.intact) << arrival.status;
  }
}

TEST_F(DataPlaneProcessTest, ShutdownEndsReceivesOfAStoppedSender) {
  Notification accepted;
  inbox_.SetHeaderHook([this, &accepted](const TestHeader&) {
    child_->Signal(SIGSTOP);
    accepted.Notify();
  });
  Start({"send", "1", std::to_string(16 << 20), "4"});
  accepted.WaitForNotification();
  plane_->Shutdown();
  const std::vector<Inbox::Arrival> arrivals = inbox_.WaitFor(1);
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].status.ok(), arrivals[0].intact) << arrivals[0].status;
}

}  // namespace
}  // namespace baton
