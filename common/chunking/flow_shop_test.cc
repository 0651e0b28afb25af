#include "common/chunking/flow_shop.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"

namespace baton {
namespace {

TEST(StageCostTest, TheWorkOfAPromptIsTheSameHoweverItIsCut) {
  const StageCost cost{.overhead_us = 100, .token_us = 2, .attention_us = 0.01};
  const double whole = cost.WorkMicros(64, 1000);
  EXPECT_NEAR(cost.WorkMicros(64, 300) + cost.WorkMicros(364, 700), whole, 1e-6 * whole);
  EXPECT_DOUBLE_EQ(cost.Micros(64, 10), 100 + 20 + 0.01 * (2 * 64 * 10 + 100));
}

TEST(StageCostTest, AChunkBelowTheFloorTakesAsLongAsTheFloor) {
  const StageCost cost{.overhead_us = 5, .prefix_us = 0.5, .token_us = 2, .floor_tokens = 100};
  EXPECT_DOUBLE_EQ(cost.Micros(10, 1), 5 + 5 + 200);
  EXPECT_DOUBLE_EQ(cost.Micros(10, 100), 5 + 5 + 200);
  EXPECT_DOUBLE_EQ(cost.Micros(10, 101), 5 + 5 + 202);
}

TEST(StageCostTest, SaysWhichCoefficientIsNoCost) {
  EXPECT_TRUE((StageCost{.token_us = 1}).Check().ok());
  EXPECT_TRUE((StageCost{.attention_us = 1}).Check().ok());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  for (const auto& [bad, name] : std::vector<std::pair<StageCost, std::string>>{
           {{.overhead_us = -1, .token_us = 1}, "overhead_us"},
           {{.prefix_us = nan, .token_us = 1}, "prefix_us"},
           {{.token_us = infinite}, "token_us"},
           {{.token_us = 1, .attention_us = -0.1}, "attention_us"},
           {{.token_us = 1, .floor_tokens = -1}, "floor_tokens"},
           {{.overhead_us = 1}, "cost nothing"}}) {
    EXPECT_EQ(bad.Check().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(bad.Check().message().find(name), std::string::npos) << bad.Check();
  }
}

TEST(RunChunksTest, FollowsTheRecurrenceByHand) {
  const StageCost fast{.overhead_us = 1, .token_us = 1};
  const StageCost slow{.overhead_us = 2, .token_us = 2};
  // Stage 0 is done at 11 and 17, stage 1 (a hop of 3 later) at 14 + 22 and 36 + 12.
  const Timeline timeline = RunChunks({fast, slow}, 0, {10, 5}, 3);
  EXPECT_DOUBLE_EQ(timeline.first_token_us, 48);
  EXPECT_EQ(timeline.busy_us, (std::vector<double>{17, 34}));
  EXPECT_EQ(timeline.longest_us, (std::vector<double>{11, 22}));
  const StageCost shortest{.token_us = 0.01};
  EXPECT_DOUBLE_EQ(RunChunks({shortest}, 0, {10, 20}).longest_us.front(), 0.2);
}

std::vector<int> RandomChunks(Random& random, int tokens) {
  std::vector<int> chunks;
  while (tokens > 0) {
    chunks.push_back(static_cast<int>(random.Between(1, tokens)));
    tokens -= chunks.back();
  }
  return chunks;
}

StageCost RandomCost(Random& random) {
  return {.overhead_us = random.Uniform() * 1000,
          .prefix_us = random.Chance(0.3) ? random.Uniform() * 0.1 : 0,
          .token_us = random.Uniform() * 10,
          .attention_us = random.Uniform() * 0.01,
          .floor_tokens = random.Chance(0.3) ? static_cast<int>(random.Below(300)) : 0};
}

TEST(RunChunksTest, OfEqualStagesItIsTheSumAndTheLongestForEachOther) {
  Random random(7);
  for (int round = 0; round < 500; ++round) {
    const StageCost cost = RandomCost(random);
    const int stages = static_cast<int>(random.Between(1, 16));
    const std::vector<int> chunks = RandomChunks(random, 1000);
    const Timeline timeline =
        RunChunks(std::vector<StageCost>(static_cast<size_t>(stages), cost), 64, chunks);
    const double expected = timeline.busy_us[0] + (stages - 1) * timeline.longest_us[0];
    EXPECT_NEAR(timeline.first_token_us, expected, 1e-9 * expected);
  }
}

TEST(FirstTokenBoundTest, NoPlanIsFasterWhateverTheStages) {
  Random random(8);
  for (int round = 0; round < 3000; ++round) {
    std::vector<StageCost> stages;
    const StageCost cost = RandomCost(random);
    const bool equal = random.Chance(0.5);
    const int64_t count = random.Between(1, 8);
    for (int64_t i = 0; i < count; ++i) stages.push_back(equal ? cost : RandomCost(random));
    const int prefix = static_cast<int>(random.Below(500));
    const double bound = FirstTokenBoundMicros(stages, prefix, 1000);
    const double planned = RunChunks(stages, prefix, RandomChunks(random, 1000)).first_token_us;
    EXPECT_LE(bound, planned * (1 + 1e-9)) << "round " << round;
  }
}

TEST(FirstTokenBoundTest, IsReachedByEqualChunksWhereTheBestNumberIsWhole) {
  // Work 1600, overhead 25, five stages: sqrt(4 * 1600 / 25) = 16 chunks.
  const StageCost cost{.overhead_us = 25, .token_us = 1};
  const std::vector<StageCost> stages(5, cost);
  const double planned = RunChunks(stages, 0, std::vector<int>(16, 100)).first_token_us;
  EXPECT_NEAR(FirstTokenBoundMicros(stages, 0, 1600), planned, 1e-9);
}

TEST(FirstTokenBoundTest, NoChainIsFasterThanItsSlowestStage) {
  const StageCost fast{.token_us = 0.1};
  const StageCost slow{.overhead_us = 5, .token_us = 10};
  for (const auto& stages : {std::vector{fast, slow}, std::vector{slow, fast}}) {
    EXPECT_DOUBLE_EQ(FirstTokenBoundMicros(stages, 0, 100), 1005);
  }
}

TEST(FirstTokenBoundTest, OneChunkIsTheLeastThereIs) {
  const StageCost cost{.overhead_us = 1000, .token_us = 1};
  EXPECT_DOUBLE_EQ(FirstTokenBoundMicros({cost, cost}, 0, 10), 2 * 1010);
}

}  // namespace
}  // namespace baton
