#include "common/kv/block_pool.h"

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace baton {
namespace {

TEST(BlockPoolTest, CountsSumThroughEveryMove) {
  BlockPool pool(8);
  const auto a = pool.Allocate(5);
  ASSERT_TRUE(a.has_value());
  EXPECT_FALSE(pool.Allocate(4).has_value());
  pool.Free(std::span(*a).subspan(2));
  EXPECT_EQ(pool.free_pages(), 6);
  EXPECT_EQ(pool.owned_pages(), 2);
  EXPECT_FALSE(pool.Allocate(7).has_value());
  pool.Free(std::span(*a).first(2));
  EXPECT_EQ(pool.free_pages(), 8);
  EXPECT_EQ(pool.owned_pages(), 0);
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

TEST(BlockPoolTest, NeverHandsOutAPageTwice) {
  BlockPool pool(32);
  Random random(7);
  std::vector<std::vector<int>> held;
  std::vector<int> owner(32, -1);
  for (int step = 0; step < 10000; ++step) {
    if (random.Chance(0.5)) {
      auto pages = pool.Allocate(static_cast<int>(random.Below(6)));
      if (!pages.has_value()) continue;
      for (const int page : *pages) {
        ASSERT_EQ(owner[page], -1);
        owner[page] = step;
      }
      held.push_back(*pages);
    } else if (!held.empty()) {
      const size_t pick = random.Below(held.size());
      for (const int page : held[pick]) owner[page] = -1;
      pool.Free(held[pick]);
      held.erase(held.begin() + static_cast<long>(pick));
    }
    ASSERT_TRUE(pool.CheckInvariants().ok());
  }
}

TEST(BlockPoolTest, GivesOutTheLongestFreePageFirst) {
  BlockPool pool(3);
  EXPECT_EQ(pool.Allocate(2), (std::vector<int>{0, 1}));
  EXPECT_EQ(pool.owned_pages(), 2);
  pool.Free(std::vector<int>{1});
  EXPECT_EQ(pool.owned_pages(), 1);
  EXPECT_EQ(pool.Allocate(1), std::vector<int>{2});
  EXPECT_EQ(pool.free_pages(), 1);
  pool.Free(std::vector<int>{2});
  EXPECT_EQ(pool.Allocate(2), (std::vector<int>{1, 2})) << "all that is free";
  EXPECT_EQ(pool.free_pages(), 0);
  EXPECT_FALSE(pool.Allocate(1).has_value());
  EXPECT_EQ(pool.Allocate(0), std::vector<int>{});
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

// Canaries are put into a page whenever it becomes free, also when it is given out again at once.
TEST(BlockPoolTest, CountsHowOftenAPageBecomesFree) {
  BlockPool pool(3);
  const auto pages = pool.Allocate(3);
  EXPECT_EQ(pool.freed_total(), 0u);
  pool.Free(std::vector<int>{2, 1});
  EXPECT_EQ(pool.Allocate(1), std::vector<int>{2});
  pool.Free(std::vector<int>{2});
  EXPECT_EQ(pool.times_freed(0), 0u);
  EXPECT_EQ(pool.times_freed(1), 1u);
  EXPECT_EQ(pool.times_freed(2), 2u);
  EXPECT_EQ(pool.freed_total(), 3u);
}

TEST(BlockPoolDeathTest, DoubleFreeIsABrokenInvariant) {
  BlockPool pool(2);
  const auto pages = pool.Allocate(1);
  pool.Free(*pages);
  EXPECT_DEATH(pool.Free(*pages), "broken invariant");
}

}  // namespace
}  // namespace baton
