#include "common/transport/mailbox.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>
#include <utility>

namespace baton {
namespace {

bool Readable(const Mailbox& mailbox) {
  pollfd descriptor{mailbox.event_fd(), POLLIN, 0};
  return poll(&descriptor, 1, /*timeout=*/0) == 1;
}

bool Push(Mailbox& mailbox, std::function<void()> task) { return mailbox.Push(task); }

TEST(MailboxTest, KeepsEachThreadsOrderAndRaisesItsDescriptor) {
  Mailbox mailbox(1000);
  EXPECT_FALSE(Readable(mailbox));
  std::vector<int> order[2];
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(Push(mailbox, [&, i] { order[0].push_back(i); }));
  });
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Push(mailbox, [&, i] { order[1].push_back(i); }));
  other.join();
  EXPECT_TRUE(Readable(mailbox));
  for (const std::function<void()>& task : mailbox.Take()) task();
  EXPECT_FALSE(Readable(mailbox));
  for (const std::vector<int>& seen : order) {
    ASSERT_EQ(seen.size(), 100u);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[i], i);
  }
  EXPECT_TRUE(mailbox.Take().empty());
}

TEST(MailboxTest, RefusesWhatIsTooMuchButNotControl) {
  Mailbox mailbox(2);
  EXPECT_TRUE(Push(mailbox, [] {}));
  EXPECT_TRUE(Push(mailbox, [] {}));
  std::function<void()> third = [] {};
  EXPECT_FALSE(mailbox.Push(third));
  EXPECT_TRUE(third != nullptr);  // Still the caller's.
  EXPECT_TRUE(mailbox.PushControl([] {}));
  EXPECT_EQ(mailbox.Close().size(), 3u);
  EXPECT_FALSE(mailbox.Push(third));
  EXPECT_FALSE(mailbox.PushControl([] {}));
  EXPECT_TRUE(mailbox.Take().empty());
  EXPECT_FALSE(Readable(mailbox));
}

}  // namespace
}  // namespace baton
