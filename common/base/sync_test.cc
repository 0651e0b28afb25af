#include "common/base/sync.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace baton {
namespace {

using std::chrono::microseconds;

constexpr microseconds kLong = microseconds::max();  // More than any clock counts.

TEST(MutexTest, EverySleeperSeesEveryChange) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 2'000;
  Mutex mutex;
  int turn = 0;
  const auto take_turns = [&](int own) {
    for (int round = 0; round < kRounds; ++round) {
      MutexLock lock(&mutex);
      const auto is_own = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
        return turn == round * kThreads + own;
      };
      // Both kinds of sleep: one that is missed would last.
      if (round % 2 == 0) {
        mutex.Await(is_own);
      } else {
        ASSERT_TRUE(mutex.AwaitFor(kLong, is_own));
      }
      ++turn;
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int own = 0; own < kThreads; ++own) threads.emplace_back(take_turns, own);
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(&mutex);
  EXPECT_EQ(turn, kThreads * kRounds);
}

TEST(MutexTest, AwaitForSaysWhatTheConditionIsWhenTimeIsOver) {
  Mutex mutex;
  MutexLock lock(&mutex);
  int asked = 0;
  const auto never = [&] {
    ++asked;
    return false;
  };
  EXPECT_FALSE(mutex.AwaitFor(microseconds(0), never));
  EXPECT_EQ(asked, 1);
  EXPECT_FALSE(mutex.AwaitFor(microseconds(-1), never));
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_FALSE(mutex.AwaitFor(microseconds(1'500), never));
  EXPECT_GE(std::chrono::steady_clock::now() - begun, microseconds(1'500));
  EXPECT_TRUE(mutex.AwaitFor(microseconds(0), [] { return true; }));
}

// Under a sanitizer it shows if who notifies touches what the waiter has freed.
TEST(NotificationTest, TheWaiterDestroysItAtOnce) {
  constexpr int kRounds = 2'000;
  Mutex mutex;
  Notification* next = nullptr;
  std::thread notifier([&] {
    for (int round = 0; round < kRounds; ++round) {
      Notification* taken = nullptr;
      {
        MutexLock lock(&mutex);
        mutex.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return next != nullptr; });
        taken = std::exchange(next, nullptr);
      }
      taken->Notify();
    }
  });
  for (int round = 0; round < kRounds; ++round) {
    const auto notification = std::make_unique<Notification>();
    {
      MutexLock lock(&mutex);
      next = notification.get();
    }
    notification->WaitForNotification();
    EXPECT_TRUE(notification->HasBeenNotified());
  }
  notifier.join();
}

}  // namespace
}  // namespace baton
