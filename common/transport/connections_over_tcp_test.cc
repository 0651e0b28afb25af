// What lies in TCP connections, and that they go with their peers.
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/base/sync.h"
#include "common/transport/data_plane.h"
#include "common/transport/testing/test_messages.h"

namespace baton {
namespace {

using testing::Inbox;
using testing::TestMessage;

// This process's stream sockets: the planes' connections, and what they listen on.
std::vector<int> StreamSockets() {
  std::vector<int> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int fd = -1;
    int type = 0;
    socklen_t size = sizeof(type);
    if (!absl::SimpleAtoi(entry.path().filename().string(), &fd)) continue;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM) {
      sockets.push_back(fd);
    }
  }
  return sockets;
}

int64_t UnreadBytes() {
  int64_t unread = 0;
  for (const int socket : StreamSockets()) {
    int bytes = 0;
    if (ioctl(socket, FIONREAD, &bytes) == 0) unread += bytes;
  }
  return unread;
}

std::unique_ptr<DataPlane> MakePlane() {
  auto plane = DataPlane::Create(testing::TestOptions());
  EXPECT_TRUE(plane.ok()) << plane.status();
  return *std::move(plane);
}

void SendOne(DataPlane& from, PeerId to) {
  const TestMessage message({.id = 1, .payload_bytes = 1}, 1);
  Notification sent;
  from.Send(to, message.ToOutgoing([&sent](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    sent.Notify();
  }));
  sent.WaitForNotification();
}

class ConnectionsOverTcpTest : public ::testing::Test {
 protected:
  ConnectionsOverTcpTest() : a_(MakePlane()), b_(MakePlane()) {
    EXPECT_TRUE(a_->Register(MessageKind::kKvPages, &inbox_).ok());
    EXPECT_TRUE(b_->Register(MessageKind::kKvPages, &inbox_).ok());
  }

  // And sends a message, so that it is there.
  PeerId Connect(DataPlane& from, const DataPlane& to) {
    const auto peer = from.Connect(to.address());
    EXPECT_TRUE(peer.ok()) << peer.status();
    SendOne(from, *peer);
    inbox_.WaitFor(++sent_);
    return *peer;
  }

  Inbox inbox_;
  std::unique_ptr<DataPlane> a_;
  std::unique_ptr<DataPlane> b_;
  size_t sent_ = 0;
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
  SendOne(*a_, there);
  const int64_t sent = UnreadBytes();
  EXPECT_GT(sent, 0) << "or this test sees nothing";
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  EXPECT_EQ(UnreadBytes(), sent);
  go_on.Notify();
  inbox_.WaitFor(++sent_);
}

TEST_F(ConnectionsOverTcpTest, NoneIsLeftOfPeersThatDisconnect) {
  const size_t before = StreamSockets().size();
  for (int round = 0; round < 20; ++round) {
    const PeerId there = Connect(*a_, *b_);
    // Every other time from both sides.
    if (round % 2 == 0) b_->Disconnect(Connect(*b_, *a_));
    a_->Disconnect(there);
  }
  // Closing takes its time; a connection that is left stays for ever.
  for (int tries = 0; tries < 1000 && StreamSockets().size() > before; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(StreamSockets().size(), before);
}

}  // namespace
}  // namespace baton
