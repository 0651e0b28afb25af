// A peer that stands still over TCP: nothing may pile up in front of it that nobody sent. UCX 1.13
// ends a process by a segmentation fault that goes on and finds two of UCX's own questions, in one
// read, for an endpoint that is gone meanwhile (README, "Known limits").
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "common/base/sync.h"
#include "common/transport/data_plane.h"
#include "common/transport/testing/test_messages.h"

namespace baton {
namespace {

using testing::Inbox;
using testing::TestMessage;

// What lies unread in this process's stream sockets.
int64_t UnreadBytes() {
  int64_t unread = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int fd = -1;
    int type = 0;
    int bytes = 0;
    socklen_t size = sizeof(type);
    if (!absl::SimpleAtoi(entry.path().filename().string(), &fd)) continue;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) continue;
    if (ioctl(fd, FIONREAD, &bytes) == 0) unread += bytes;
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

TEST(SilentPeerTest, NothingPilesUpInFrontOfIt) {
  Inbox inbox;
  const std::unique_ptr<DataPlane> quick = MakePlane();
  const std::unique_ptr<DataPlane> silent = MakePlane();
  ASSERT_TRUE(silent->Register(MessageKind::kKvPages, &inbox).ok());
  ASSERT_TRUE(quick->Register(MessageKind::kKvPages, &inbox).ok());
  const auto there = quick->Connect(silent->address());
  const auto back = silent->Connect(quick->address());
  ASSERT_TRUE(there.ok() && back.ok());
  SendOne(*quick, *there);
  SendOne(*silent, *back);
  inbox.WaitFor(2);

  Notification stands_still, go_on;
  ASSERT_TRUE(silent->Post([&] {
    stands_still.Notify();
    go_on.WaitForNotification();
  }));
  stands_still.WaitForNotification();
  SendOne(*quick, *there);
  const int64_t sent = UnreadBytes();
  EXPECT_GT(sent, 0) << "or this test sees nothing";
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  EXPECT_EQ(UnreadBytes(), sent);
  go_on.Notify();
  inbox.WaitFor(3);
}

}  // namespace
}  // namespace baton
