#include "common/base/event_loop.h"

#include <gtest/gtest.h>

#include <atomic>

#include "common/base/sync.h"

namespace baton {
namespace {

TEST(EventLoopTest, RunsTasksInOrderOnItsOwnThread) {
  EventLoop loop("test");
  loop.Start();
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(loop.Post([&, i] {
      EXPECT_TRUE(loop.OnLoopThread());
      order.push_back(i);
    }));
  }
  loop.Stop();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(EventLoopTest, RefusesWhenFullAndWhenStopped) {
  EventLoop loop("test", /*mailbox_limit=*/2);
  EXPECT_TRUE(loop.Post([] {}));
  EXPECT_TRUE(loop.Post([] {}));
  EXPECT_FALSE(loop.Post([] {}));
  loop.Start();
  loop.Stop();
  EXPECT_FALSE(loop.Post([] {}));
}

TEST(EventLoopTest, TakesCompletionsIntoAFullMailboxAndInOrder) {
  EventLoop loop("test", /*mailbox_limit=*/1);
  std::vector<int> order;
  EXPECT_TRUE(loop.Post([&] { order.push_back(0); }));
  EXPECT_TRUE(loop.PostCompletion([&] { order.push_back(1); }));
  EXPECT_FALSE(loop.Post([&] { order.push_back(2); }));
  EXPECT_TRUE(loop.PostCompletion([&] { order.push_back(3); }));
  loop.Start();
  loop.Stop();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 3}));
  EXPECT_FALSE(loop.PostCompletion([] {}));
}

TEST(EventLoopTest, WakesAtTheTimeThatTheHandlerAsksFor) {
  EventLoop loop("test");
  Notification woken;
  const int64_t start_us = NowUs();
  bool first = true;
  loop.SetWakeHandler([&](int64_t now_us) {
    if (first) {
      first = false;
      return start_us + 2000;
    }
    if (now_us >= start_us + 2000 && !woken.HasBeenNotified()) woken.Notify();
    return kNeverUs;
  });
  loop.Start();
  woken.WaitForNotification();
}

TEST(EventLoopTest, AwaitAsksOnTheLoopUntilItIsTrueOrTimeIsUp) {
  EventLoop loop("test");
  loop.Start();
  int asked = 0;
  EXPECT_TRUE(loop.Await(
      [&] {
        EXPECT_TRUE(loop.OnLoopThread());
        return ++asked == 3;
      },
      /*limit_ms=*/60'000));
  EXPECT_EQ(asked, 3);
  EXPECT_FALSE(loop.Await([] { return false; }, /*limit_ms=*/1));
  loop.Stop();
  EXPECT_TRUE(loop.Await([] { return false; }, /*limit_ms=*/60'000)) << "nothing is left to await";
}

}  // namespace
}  // namespace baton
