#include "common/chunking/chunk_forecast.h"

#include <gtest/gtest.h>

#include <climits>
#include <numeric>
#include <utility>

#include "common/chunking/chunk_plan.h"

namespace baton {
namespace {

constexpr StageCost kCost = {.overhead_us = 4000, .token_us = 10, .attention_us = 0.001};
constexpr int kPrompt = 131'071;

ChunkOptions OptionsOf(ChunkRule rule, int chunk_tokens) {
  return {
      .rule = rule, .page_size = 64, .chunk_tokens = chunk_tokens, .max_context_tokens = 1 << 18};
}

TEST(ChunkForecastTest, CutsAsTheRulesDo) {
  const std::vector<StageCost> stages(4, kCost);
  const PromptShape prompt = {.tokens = kPrompt, .page_size = 64};
  EXPECT_EQ(ForecastChunks(OptionsOf(ChunkRule::kFixed, 4096), stages, 4, kPrompt).chunks,
            PlanFixed(prompt, 4096));
  EXPECT_EQ(ForecastChunks(OptionsOf(ChunkRule::kSglang, 8192), stages, 4, kPrompt).chunks,
            PlanSglang(prompt, kCost, 8192, 0.75));
  const ChunkForecast optimal =
      ForecastChunks(OptionsOf(ChunkRule::kOptimal, 32'768), stages, 4, kPrompt);
  EXPECT_EQ(optimal.chunks, PlanOptimal(prompt, stages, 32'768));
  EXPECT_EQ(std::accumulate(optimal.chunks.begin(), optimal.chunks.end(), 0), kPrompt);
  EXPECT_LT(optimal.timeline.first_token_us, 1.02 * FirstTokenBoundMicros(stages, 0, kPrompt));
  EXPECT_EQ(optimal.timeline.first_token_us, RunChunks(stages, 0, optimal.chunks).first_token_us)
      << "of a prompt without a prefix";
}

TEST(ChunkForecastTest, TheBubbleIsWhatStagesDoNotWork) {
  // Two equal chunks on three stages: each works two of four steps.
  const std::vector<StageCost> stages(3, {.token_us = 1});
  const ChunkForecast forecast =
      ForecastChunks(OptionsOf(ChunkRule::kFixed, 1024), stages, 3, 2048);
  EXPECT_DOUBLE_EQ(forecast.timeline.first_token_us, 4 * 1024);
  EXPECT_DOUBLE_EQ(forecast.bubble, 0.5);
  const ChunkForecast alone =
      ForecastChunks(OptionsOf(ChunkRule::kFixed, 1024), {{.token_us = 1}}, 1, 2048);
  EXPECT_DOUBLE_EQ(alone.bubble, 0);
}

TEST(ChunkForecastTest, WithoutCostsThereAreChunksAndNoTimes) {
  const ChunkForecast forecast =
      ForecastChunks(OptionsOf(ChunkRule::kOptimal, 32'768), {}, 4, 1 << 17);
  EXPECT_EQ(forecast.chunks.front(), 4096) << "four for each stage, the first half as large";
  EXPECT_EQ(forecast.chunks[1], 8192);
  EXPECT_TRUE(forecast.timeline.busy_us.empty());
}

TEST(ChunkForecastTest, NoChunkIsLargerThanTheContext) {
  const ChunkOptions whole = WithinContext({.rule = ChunkRule::kOptimal,
                                            .page_size = 64,
                                            .chunk_tokens = INT_MAX,
                                            .max_context_tokens = 1000});
  EXPECT_EQ(whole.rule, ChunkRule::kFixed);
  EXPECT_EQ(whole.chunk_tokens, 1024);
  EXPECT_EQ(ForecastChunks(whole, {}, 2, 999).chunks, std::vector<int>{999});
  for (const auto& [context, most] : {std::pair(1024, 1024), std::pair(1025, 1088)}) {
    const ChunkOptions bounded =
        WithinContext({.page_size = 64, .chunk_tokens = 1 << 20, .max_context_tokens = context});
    EXPECT_EQ(bounded.chunk_tokens, most);
  }
  EXPECT_EQ(WithinContext(OptionsOf(ChunkRule::kSglang, 512)).chunk_tokens, 512);
  EXPECT_EQ(WithinContext(OptionsOf(ChunkRule::kSglang, 512)).rule, ChunkRule::kSglang);
}

TEST(ChunkForecastTest, RulesHaveNames) {
  for (const ChunkRule rule : {ChunkRule::kFixed, ChunkRule::kSglang, ChunkRule::kOptimal}) {
    EXPECT_EQ(ParseChunkRule(ChunkRuleName(rule)), rule);
  }
  EXPECT_FALSE(ParseChunkRule("").has_value());
}

}  // namespace
}  // namespace baton
