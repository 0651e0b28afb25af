#include "services/prefill/stage/cost_sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "services/prefill/stage/sweep_fixture.h"

namespace baton::prefill {
namespace {

using sweep_testing::FakeExecutor;
using sweep_testing::kCost;
using sweep_testing::kLimits;
using sweep_testing::kPage;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CostSweepTest, FindsWhatChunksCostOnAnyStage) {
  for (const auto& [begin, end] : {std::pair(0, 2), std::pair(1, 3), std::pair(2, 4)}) {
    FakeExecutor executor(begin, end);
    // The first chunk pays for what is done once.
    executor.factor = [](size_t step) { return step == 1 ? 50 : 1; };
    const SweepResult result = SweepCosts(executor, kLimits);
    ASSERT_TRUE(result.cost.has_value()) << result.missing;
    EXPECT_THAT(executor.chunks, ElementsAre(16, 64, 256, 128, 64, 256, 128, 64, 256, 128));
    EXPECT_EQ(result.samples.size(), 9u);
    EXPECT_LT(result.cost->error, 0.02);
    for (const int tokens : {32, 512}) {
      for (const int prefix : {0, 1500}) {
        const double expected = kCost.Micros(prefix, tokens);
        EXPECT_NEAR(result.cost->cost.Micros(prefix, tokens), expected, 0.1 * expected);
      }
    }
  }
}

TEST(CostSweepTest, OneChunkThatIsHeldUpIsNoReasonToGiveUp) {
  FakeExecutor executor(0, 4);
  executor.factor = [](size_t step) { return step == 5 ? 1.6 : 1; };
  const SweepResult result = SweepCosts(executor, kLimits);
  ASSERT_TRUE(result.cost.has_value()) << result.missing;
  const double expected = kCost.Micros(500, 200);
  EXPECT_NEAR(result.cost->cost.Micros(500, 200), expected, 0.25 * expected);
}

TEST(CostSweepTest, WhatDoesNotFollowFromSizesIsNotUsed) {
  FakeExecutor executor(0, 4);
  executor.factor = [](size_t step) { return step % 2 == 0 ? 12 : 1; };
  const SweepResult result = SweepCosts(executor, kLimits);
  EXPECT_FALSE(result.cost.has_value());
  EXPECT_THAT(result.missing, HasSubstr("other times"));
}

TEST(CostSweepTest, BeginsNoChunkThatIsNotExpectedToEndInTime) {
  FakeExecutor slow(0, 4);
  SweepLimits limits = kLimits;
  limits.budget_us = 10;  // Less than any chunk takes.
  const SweepResult result = SweepCosts(slow, limits);
  EXPECT_EQ(slow.chunks.size(), 1u);
  EXPECT_FALSE(result.cost.has_value());
  EXPECT_THAT(result.missing, HasSubstr("only 0 chunks in the time"));
}

TEST(CostSweepTest, AnExecutorThatFailsIsToldOf) {
  FakeExecutor executor(0, 4);
  executor.status = absl::DataLossError("no such prompt");
  const SweepResult result = SweepCosts(executor, kLimits);
  EXPECT_FALSE(result.cost.has_value());
  EXPECT_EQ(result.missing, "no such prompt");
}

// The messages of a sweep, as another rank receives them.
std::vector<SweepWord> WordsOf(const SweepLimits& limits, SweepResult* result) {
  FakeExecutor leader(0, 2);
  std::vector<SweepWord> words;
  *result = SweepCosts(leader, limits, [&](SweepWord word) {
    words.push_back(word);
    return absl::OkStatus();
  });
  words.emplace_back();
  return words;
}

absl::Status Follow(FakeExecutor& executor, const std::vector<SweepWord>& words) {
  size_t next = 0;
  return FollowSweep(executor, [&]() -> absl::StatusOr<SweepWord> {
    if (next == words.size()) return absl::UnavailableError("rank 0 is gone");
    return words[next++];
  });
}

TEST(CostSweepTest, AnotherRankComputesTheSameStepsHoweverLongTheyTakeIt) {
  SweepResult result;
  const std::vector<SweepWord> words = WordsOf(kLimits, &result);
  EXPECT_TRUE(result.cost.has_value()) << result.missing;
  FakeExecutor follower(0, 2);
  follower.factor = [](size_t) { return 1000; };
  EXPECT_EQ(Follow(follower, words), absl::OkStatus());
  EXPECT_THAT(follower.chunks, ElementsAre(16, 64, 256, 128, 64, 256, 128, 64, 256, 128));

  SweepLimits hurried = kLimits;
  hurried.budget_us = 10;
  FakeExecutor cold(0, 2);
  EXPECT_EQ(Follow(cold, WordsOf(hurried, &result)), absl::OkStatus());
  EXPECT_THAT(cold.chunks, ElementsAre(16)) << "rank 0 alone decides how long to go on";
  EXPECT_EQ(Follow(cold, {SweepWord{}}), absl::OkStatus()) << "nobody asks for costs";
}

TEST(CostSweepTest, WordsThatAreNoSweepEndIt) {
  for (const std::vector<SweepWord>& words : {std::vector<SweepWord>{{1 << 20, 64}},
                                              {{64, 128}},
                                              {{128, -1}},
                                              {{128, 64}, {16, 64}},
                                              {{128, 64}, {0, 65}},
                                              {{128, 64}, {0, 64}, {64, 64}, {128, 64}}}) {
    FakeExecutor executor(1, 3);
    EXPECT_EQ(Follow(executor, words).code(), absl::StatusCode::kInvalidArgument);
  }
  FakeExecutor executor(1, 3);
  EXPECT_EQ(Follow(executor, {{128, 64}, {0, 64}}).message(), "rank 0 is gone");
  FakeExecutor failing(1, 3);
  failing.status = absl::DataLossError("no such prompt");
  EXPECT_EQ(Follow(failing, {{128, 64}, {0, 64}}), failing.status);
}

TEST(CostSweepTest, ARankThatCannotTellTheOthersStops) {
  FakeExecutor leader(0, 2);
  const SweepResult result =
      SweepCosts(leader, kLimits, [](SweepWord) { return absl::UnavailableError("gone"); });
  EXPECT_EQ(result.missing, "gone");
  EXPECT_THAT(leader.chunks, IsEmpty());
}

// The chunks behind the first page.
std::vector<int> ChunksOf(int pages, int chunk_tokens, int context, int64_t budget_us) {
  FakeExecutor executor(0, 4, pages);
  SweepCosts(executor, {chunk_tokens, context, budget_us});
  if (!executor.chunks.empty()) executor.chunks.erase(executor.chunks.begin());
  return executor.chunks;
}

TEST(CostSweepTest, ChunksFitIntoContextAndPages) {
  constexpr int64_t kLong = 600'000'000;
  EXPECT_THAT(ChunksOf(256, 512, 4096, kLong),
              ElementsAre(64, 256, 128, 64, 256, 128, 64, 256, 128));
  const auto halves = ElementsAre(32, 128, 64, 32, 128, 64, 64, 256, 128);
  EXPECT_THAT(ChunksOf(256, 512, 1000, kLong), halves) << "the context ends";
  EXPECT_THAT(ChunksOf(60, 512, 4096, kLong), halves) << "the pages end";
  EXPECT_THAT(ChunksOf(21, 512, 4096, kLong), IsEmpty()) << "too few for three turns";
  EXPECT_THAT(ChunksOf(1, 512, 4096, kLong), IsEmpty());
  EXPECT_THAT(ChunksOf(256, 8 * kPage - 1, 4096, kLong), IsEmpty()) << "one is less than a page";
  for (const int pages : {22, 56, 60, 61, 83, 84, 85, 1000}) {
    const std::vector<int> all = ChunksOf(pages, 1 << 20, 1 << 20, kLong);
    EXPECT_EQ(all.size(), 9u);
    EXPECT_LE(std::accumulate(all.begin(), all.end(), kPage), pages * kPage);
  }
  FakeExecutor executor(0, 4);
  EXPECT_THAT(SweepCosts(executor, {.max_chunk_tokens = kPage, .max_context_tokens = 4096}).missing,
              HasSubstr("no room"));
}

// A thousand tokens take 70 ms here: a slow stage must not begin with half of a large plan.
TEST(CostSweepTest, ChunksGrowAsFarAsThereIsTime) {
  const auto chunks = [](int64_t budget_us) {
    return ChunksOf(1 << 13, 32'768, 1 << 17, budget_us);
  };
  EXPECT_THAT(chunks(600'000'000),
              ElementsAre(256, 1024, 512, 4096, 16'384, 8192, 4096, 16'384, 8192));
  EXPECT_THAT(chunks(800'000), ElementsAre(256, 1024, 512, 256, 1024, 512, 256, 1024, 512));
}

}  // namespace
}  // namespace baton::prefill
