// What lies in TCP connections, and that they go with their peers.
#include <gtest/gtest.h>
#include <sys/ioctl.h>

#include <chrono>
#include <memory>
#include <thread>

#include "common/base/sync.h"
#include "common/net/testing/open_sockets.h"
#include "common/transport/data_plane.h"
#include "common/transport/testing/test_messages.h"

namespace baton {
namespace {

using net::testing::OpenSockets;
using testing::Inbox;
using testing::Outbox;
using testing::TestMessage;

int64_t UnreadBytes() {
  int64_t unread = 0;
  for (const int socket : OpenSockets()) {
    int bytes = 0;
    if (ioctl(socket, FIONREAD, &bytes) == 0) unread += bytes;
  }
  return unread;
}

class ConnectionsOverTcpTest : public ::testing::Test {
 protected:
  // Without Baton's own questions, of which no more pile up than it has patience for.
  static DataPlaneOptions Options() {
    DataPlaneOptions options = testing::TestOptions();
    options.silence_us = 0;
    return options;
  }

  ConnectionsOverTcpTest() : a_(*DataPlane::Create(Options())), b_(*DataPlane::Create(Options())) {
    EXPECT_TRUE(a_->Register(MessageKind::kKvPages, &inbox_).ok());
    EXPECT_TRUE(b_->Register(MessageKind::kKvPages, &inbox_).ok());
  }

  void Send(DataPlane& from, PeerId to) {
    const TestMessage message({.id = ++sent_, .payload_bytes = 1}, 1);
    from.Send(to, message.ToOutgoing(outbox_.Expect()));
    for (const absl::Status& status : outbox_.WaitForAll()) EXPECT_TRUE(status.ok()) << status;
  }

  // And sends a message, so that it is there.
  PeerId Connect(DataPlane& from, const DataPlane& to) {
    const auto peer = from.Connect(to.address());
    EXPECT_TRUE(peer.ok()) << peer.status();
    Send(from, *peer);
    inbox_.WaitForId(sent_);
    return *peer;
  }

  Inbox inbox_;
  Outbox outbox_;
  std::unique_ptr<DataPlane> a_;
  std::unique_ptr<DataPlane> b_;
  uint64_t sent_ = 0;
};

// UCX 1.13 ends a process by a segmentation fault that goes on after standing still and finds two
// of UCX's own questions, in one read, for an endpoint that is gone meanwhile.
TEST_F(ConnectionsOverTcpTest, NothingPilesUpInFrontOfAPeerThatStandsStill) {
  const PeerId there = Connect(*a_, *b_);
  Connect(*b_, *a_);
  Notification stands_still, go_on;
  ASSERT_TRUE(b_->Post([&] {
    stands_still.Notify();
    go_on.WaitForNotification();
  }));
  stands_still.WaitForNotification();
  Send(*a_, there);
  const int64_t sent = UnreadBytes();
  EXPECT_GT(sent, 0) << "or this test sees nothing";
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  EXPECT_EQ(UnreadBytes(), sent);
  go_on.Notify();
  inbox_.WaitForId(sent_);
}

TEST_F(ConnectionsOverTcpTest, NoneIsLeftOfPeersThatDisconnect) {
  const size_t before = OpenSockets().size();
  for (int round = 0; round < 20; ++round) {
    const PeerId there = Connect(*a_, *b_);
    // Every other time from both sides.
    if (round % 2 == 0) b_->Disconnect(Connect(*b_, *a_));
    a_->Disconnect(there);
  }
  // Closing takes its time; a leaked connection never closes.
  for (int tries = 0; tries < 1000 && OpenSockets().size() > before; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(OpenSockets().size(), before);
}

}  // namespace
}  // namespace baton
