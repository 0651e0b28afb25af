#include "common/base/event_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

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

TEST(EventLoopTest, TheCallerRunsATaskInPlaceOfAnIdleLoop) {
  EventLoop loop("test");
  Notification idle;
  loop.SetWakeHandler([&, wakes = 0](int64_t) mutable {
    if (++wakes == 2) idle.Notify();  // The first one comes before the loop is ready.
    return kNeverUs;
  });
  loop.Start();
  ASSERT_TRUE(loop.Post([] {}));
  idle.WaitForNotification();
  // The loop's thread may be on its way to sleep.
  bool here = false;
  while (!here) {
    Notification ran;
    ASSERT_TRUE(loop.RunOrPost([&, caller = std::this_thread::get_id()] {
      here = std::this_thread::get_id() == caller;
      ran.Notify();
    }));
    ran.WaitForNotification();
  }
  loop.Stop();
  EXPECT_FALSE(loop.RunOrPost([] {}));
}

// The state that tasks share has no lock: ThreadSanitizer would see two at once.
TEST(EventLoopTest, TasksRunOneAtATimeWhoeverRunsThem) {
  constexpr int kThreads = 4;
  constexpr int kTasks = 2000;
  EventLoop loop("test");
  loop.Start();
  int sum = 0;
  std::vector<std::vector<int>> order(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kTasks; ++i) {
        const auto task = [&, thread, i] {
          ++sum;
          order[thread].push_back(i);
        };
        EXPECT_TRUE(i % 2 == thread % 2 ? loop.RunOrPostCompletion(task)
                                        : loop.PostCompletion(task));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  loop.Stop();
  EXPECT_EQ(sum, kThreads * kTasks);
  for (const std::vector<int>& of_thread : order) {
    EXPECT_TRUE(std::is_sorted(of_thread.begin(), of_thread.end()));
  }
}

// A task that the caller runs may want to be woken sooner than the loop's thread knows.
TEST(EventLoopTest, WakesAtATimeThatATaskOfTheCallerAsksFor) {
  EventLoop loop("test");
  int64_t due_us = kNeverUs;  // The loop's.
  Notification woken;
  loop.SetWakeHandler([&](int64_t now_us) {
    if (now_us >= due_us) {
      due_us = kNeverUs;
      woken.Notify();
    }
    return due_us;
  });
  loop.Start();
  ASSERT_TRUE(loop.RunOrPost([&] { due_us = NowUs() + 2000; }));
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
