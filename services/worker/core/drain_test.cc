#include "services/worker/core/drain.h"

#include <gtest/gtest.h>

namespace baton::worker {
namespace {

constexpr DrainFacts kNothing{.at_rest = true, .untold_routers = 0, .needed_requests = 0};
constexpr int64_t kBegunUs = 50;

class DrainTest : public testing::Test {
 protected:
  DrainTest() { drain_.Begin(kBegunUs); }
  Drain drain_{{.drain_us = 1000, .ending_us = 100}};
};

TEST(DrainBeforeTest, AServingWorkerLeavesForNothing) {
  Drain drain({.drain_us = 1000});
  EXPECT_EQ(drain.Update(kNothing, 5'000'000), DrainPhase::kServing);
  EXPECT_EQ(drain.NextDeadlineUs(), kNeverUs);
}

TEST_F(DrainTest, LeavesWhenNobodyNeedsIt) {
  EXPECT_EQ(drain_.Update({true, 1, 0}, 60), DrainPhase::kDraining) << "a router may send more";
  EXPECT_EQ(drain_.Update({true, 0, 1}, 70), DrainPhase::kDraining) << "on its way to it";
  EXPECT_EQ(drain_.Update({false, 0, 0}, 80), DrainPhase::kDraining) << "its pages are in use";
  EXPECT_EQ(drain_.Update(kNothing, 90), DrainPhase::kLeaving);
  for (const int64_t later_us : {100, 1050}) {
    EXPECT_EQ(drain_.Update({false, 1, 1}, later_us), DrainPhase::kLeaving);
  }
  EXPECT_EQ(drain_.begun_us(), kBegunUs);
}

TEST_F(DrainTest, EndsWhatIsLeftWhenTheTimeIsOver) {
  EXPECT_EQ(drain_.NextDeadlineUs(), kBegunUs + 1000);
  EXPECT_EQ(drain_.Update({false, 0, 3}, kBegunUs + 999), DrainPhase::kDraining);
  EXPECT_EQ(drain_.Update({false, 0, 3}, kBegunUs + 1000), DrainPhase::kEnding);
  EXPECT_EQ(drain_.Update(kNothing, kBegunUs + 1010), DrainPhase::kLeaving);
}

TEST_F(DrainTest, WaitsForNobodyForEver) {
  drain_.Begin(kBegunUs + 900);  // Told once more: the time does not begin again.
  drain_.Update({false, 0, 3}, kBegunUs + 1000);
  EXPECT_EQ(drain_.NextDeadlineUs(), kBegunUs + 1100);
  EXPECT_EQ(drain_.Update({false, 0, 3}, kBegunUs + 1099), DrainPhase::kEnding);
  EXPECT_EQ(drain_.Update({false, 0, 3}, kBegunUs + 1100), DrainPhase::kLeaving);
}

TEST(WhatDrainWaitsForTest, NamesEverything) {
  EXPECT_EQ(WhatDrainWaitsFor({false, 1, 2}),
            "1 routers that do not know of it yet; 2 requests that need it; its own work");
  EXPECT_EQ(WhatDrainWaitsFor(kNothing), "nothing");
}

}  // namespace
}  // namespace baton::worker
