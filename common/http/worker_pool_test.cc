#include "common/http/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "common/http/server_context.h"

namespace baton {
namespace {

TEST(WorkerPoolTest, LargeTasksLeaveAThreadToSmallOnes) {
  Notification release;
  Notification small_ran;
  std::atomic<int> large_ran{0};
  WorkerPool pool("test", 2);
  for (int i = 0; i < 4; ++i) {
    pool.Submit(WorkerPool::kLargeBytes + 1, [&] {
      if (large_ran.fetch_add(1) == 0) release.WaitForNotification();
    });
  }
  pool.Submit(10, [&] { small_ran.Notify(); });
  small_ran.WaitForNotification();  // The first large task still runs.
  EXPECT_EQ(large_ran, 1);
  release.Notify();
}

TEST(WorkerPoolTest, OneThreadDoesEverything) {
  Notification done;
  WorkerPool pool("test", 1);
  pool.Submit(WorkerPool::kLargeBytes + 1, [] {});
  pool.Submit(1, [&] { done.Notify(); });
  done.WaitForNotification();
}

TEST(WorkerPoolTest, DropsWhatHasNotBegunWithItsOwner) {
  const auto owned = std::make_shared<int>(0);
  {
    Notification begun;
    WorkerPool pool("test", 1);
    pool.Submit(1, [&begun] { begun.Notify(); });
    begun.WaitForNotification();
    for (int i = 0; i < 100; ++i) pool.Submit(1, [owned] {});
  }
  EXPECT_EQ(owned.use_count(), 1);
}

TEST(BodyBudgetTest, CountsWhatIsHeldBeyondTheFreeBytes) {
  constexpr size_t kFree = BodyBudget::kFreeBytes;
  BodyBudget budget(100);
  BodyBudget::Charge first(budget);
  EXPECT_TRUE(first.GrowTo(kFree));
  EXPECT_EQ(budget.used_bytes(), 0u);
  EXPECT_TRUE(first.GrowTo(kFree + 60));
  {
    BodyBudget::Charge second(budget);
    EXPECT_FALSE(second.GrowTo(kFree + 41));
    EXPECT_TRUE(second.GrowTo(kFree + 40));
    EXPECT_FALSE(first.GrowTo(kFree + 61));
    const BodyBudget::Charge moved = std::move(second);
    EXPECT_EQ(budget.used_bytes(), 100u);
  }
  EXPECT_EQ(budget.used_bytes(), 60u);
  first = {};
  EXPECT_EQ(budget.used_bytes(), 0u);
}

}  // namespace
}  // namespace baton
