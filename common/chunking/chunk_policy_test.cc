#include "common/chunking/chunk_policy.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "common/chunking/chunk_plan.h"
#include "common/chunking/flow_shop.h"

namespace baton {
namespace {

constexpr int kPage = 16;
constexpr StageCost kCost = {.overhead_us = 4000, .token_us = 10, .attention_us = 0.001};

ChunkOptions OptionsOf(ChunkRule rule, int chunk_tokens = 8192) {
  return {.rule = rule,
          .page_size = kPage,
          .chunk_tokens = chunk_tokens,
          .max_context_tokens = 1 << 20};
}

// As the planner asks for the chunks of one prompt.
std::vector<int> Cut(ChunkPolicy& policy, int tokens, int64_t other_tokens = 0) {
  std::vector<int> chunks;
  for (int done = 0; done < tokens; done += chunks.back()) {
    const int budget = policy.PlanTokens({done, tokens - done, other_tokens});
    EXPECT_GE(budget, kPage);
    EXPECT_LE(budget, policy.max_plan_tokens());
    chunks.push_back(FitChunk(tokens - done, budget, kPage));
    EXPECT_GT(chunks.back(), 0);
    if (chunks.back() <= 0) break;
  }
  return chunks;
}

TEST(FitChunkTest, EndsThePromptWhereverThatIs) {
  EXPECT_EQ(FitChunk(1, 64, 16), 1);
  EXPECT_EQ(FitChunk(37, 64, 16), 37);
  EXPECT_EQ(FitChunk(64, 64, 16), 64);
}

TEST(FitChunkTest, CutsOnPageBoundariesOtherwise) {
  EXPECT_EQ(FitChunk(100, 64, 16), 64);
  EXPECT_EQ(FitChunk(100, 63, 16), 48);
  EXPECT_EQ(FitChunk(100, 15, 16), 0);
}

TEST(FixedChunksTest, IgnoresThePositionAndCosts) {
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kFixed, 256));
  policy->SetCosts({kCost, kCost});
  EXPECT_EQ(policy->PlanTokens({.prefix_length = 0, .remaining_tokens = 10}), 256);
  EXPECT_EQ(policy->PlanTokens({.prefix_length = 100'000, .remaining_tokens = 1}), 256);
  EXPECT_EQ(policy->max_plan_tokens(), 256);
}

TEST(OptimalChunksTest, NoPlanIsLargerThanTheContextInWholePages) {
  ChunkOptions options = OptionsOf(ChunkRule::kOptimal);
  for (const auto& [context, plan] : {std::pair{64, 64}, {65, 80}, {1, 16}}) {
    options.max_context_tokens = context;
    const auto policy = MakeChunkPolicy(options);
    policy->SetCosts({kCost, kCost});
    EXPECT_EQ(policy->PlanTokens({0, context, 100'000}), plan) << context;
  }
}

TEST(SglangChunksTest, WithoutCostsItIsFixed) {
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kSglang, 512));
  EXPECT_EQ(policy->PlanTokens({4096, 9000}), 512);
  policy->SetCosts({kCost, kCost});
  EXPECT_NE(policy->PlanTokens({100'000, 9000}), 512);
  policy->SetCosts({});
  EXPECT_EQ(policy->PlanTokens({100'000, 9000}), 512) << "they are not known any more";
}

TEST(OptimalChunksTest, WithoutCostsThereAreFourChunksAStage) {
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kOptimal, 32'768));
  const auto tokens = [&](int prefix_length, int remaining_tokens, int stages) {
    return policy->PlanTokens({prefix_length, remaining_tokens, 0, stages});
  };
  EXPECT_EQ(tokens(8192, 131'072 - 8192, 4), 8192);
  EXPECT_EQ(tokens(0, 131'072, 4), 4096) << "the first is half as large";
  EXPECT_EQ(tokens(0, 131'072, 1), 32'768) << "one stage has no bubbles";
  EXPECT_EQ(tokens(1'000'000, 48'576, 2), 32'768) << "the most";
  EXPECT_EQ(tokens(600, 400, 4), 512) << "less would be mostly overhead";
  EXPECT_EQ(tokens(0, 400, 4), 512);
  EXPECT_EQ(tokens(0, 512, 4), 512) << "one chunk, which teaches as much as two";
  EXPECT_EQ(tokens(0, 1000, 4), 256);
  policy->SetCosts({kCost, kCost, kCost, kCost});
  EXPECT_NE(tokens(8192, 131'072 - 8192, 4), 8192);
  policy->SetCosts({});
  EXPECT_EQ(tokens(8192, 131'072 - 8192, 4), 8192) << "they are not known any more";
}

TEST(SglangChunksTest, CutsAsItsPlanDoes) {
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kSglang, 4096));
  policy->SetCosts({kCost});
  EXPECT_EQ(Cut(*policy, 131'072),
            PlanSglang({.tokens = 131'072, .page_size = kPage}, kCost, 4096, 0.75));
}

TEST(SglangChunksTest, GoesByTheSlowestStage) {
  const StageCost slow = {.overhead_us = 1, .token_us = 40, .attention_us = 0.02};
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kSglang, 4096));
  policy->SetCosts({kCost, slow, kCost});
  EXPECT_EQ(policy->PlanTokens({65'536, 65'536}), SglangChunk(65'536, kPage, slow, 4096, 0.75));
}

TEST(SglangChunksTest, OfEquallySlowStagesTheFirstCounts) {
  const StageCost even{.token_us = 2};
  const StageCost steep{.token_us = 1,
                        .attention_us = 1.0 / 1024};  // Both take 2,048 us for 1,024.
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kSglang, 1024));
  policy->SetCosts({even, steep});
  EXPECT_EQ(policy->PlanTokens({65'536, 65'536}), 1024);
  policy->SetCosts({steep, even});
  EXPECT_LT(policy->PlanTokens({65'536, 65'536}), 1024);
}

TEST(SglangChunksTest, ThePromptBeginsWithTheBaseWhateverItsUnit) {
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kSglang, 80));
  policy->SetCosts({kCost});
  EXPECT_EQ(policy->PlanTokens({0, 1000}), 80);
  EXPECT_EQ(policy->PlanTokens({80, 1000}), 64);
}

TEST(SglangChunksTest, IsCappedAsThere) {
  ChunkOptions options = OptionsOf(ChunkRule::kSglang, 4096);
  options.max_context_tokens = 20'000;
  options.later_tokens = 1000;
  const auto policy = MakeChunkPolicy(options);
  policy->SetCosts({kCost});
  EXPECT_EQ(policy->PlanTokens({0, 20'000}), 4096) << "a prompt's first chunk is the base";
  EXPECT_EQ(policy->PlanTokens({4096, 15'904}), 960) << "in whole units of 64";
  EXPECT_EQ(policy->PlanTokens({19'200, 800}), 640) << "a hundred tokens of the context stay free";
  EXPECT_EQ(policy->PlanTokens({19'840, 160}), 4096) << "without a unit it is the base again";
}

// By what a chunk of the base takes without a prefix: not by what a prefix would add.
TEST(SglangChunksTest, TheSlowestIsSoAtThePromptsBegin) {
  const StageCost slowest = {.token_us = 41, .attention_us = 0.02};
  const StageCost beside = {.prefix_us = 1e6, .token_us = 41, .attention_us = 0.001};
  for (const std::vector<StageCost>& stages :
       {std::vector{slowest, beside}, std::vector{beside, slowest}}) {
    const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kSglang, 4096));
    policy->SetCosts(stages);
    EXPECT_EQ(policy->PlanTokens({65'536, 65'536}),
              SglangChunk(65'536, kPage, slowest, 4096, 0.75));
  }
}

TEST(OptimalChunksTest, APromptAloneIsCutAsWellAsItCanBe) {
  for (const size_t stages : {2, 4, 8}) {
    const std::vector<StageCost> costs(stages, kCost);
    const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kOptimal, 1 << 18));
    policy->SetCosts(costs);
    const PromptShape prompt = {.tokens = 131'072, .page_size = kPage};
    const double best_us = RunChunks(costs, 0, PlanOptimal(prompt, costs, 1 << 18)).first_token_us;
    const double us = RunChunks(costs, 0, Cut(*policy, prompt.tokens)).first_token_us;
    EXPECT_LE(us, best_us * 1.003) << stages;
  }
}

TEST(OptimalChunksTest, ItsChunksAreThePlans) {
  const std::vector<StageCost> costs = {kCost, kCost.Times(1.5)};
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kOptimal, 1 << 18));
  policy->SetCosts(costs);
  const std::vector<int> planned = PlanOptimal({0, 65'536, kPage}, costs, 1 << 18);
  EXPECT_EQ(Cut(*policy, 65'536), planned);
  EXPECT_NE(planned[0], planned[1]);
  // Behind a plan that was shared, a chunk begins elsewhere.
  const auto tokens_at = [&](int begin) { return policy->PlanTokens({begin, 65'536 - begin}); };
  EXPECT_EQ(tokens_at(kPage), planned[0]);
  EXPECT_EQ(tokens_at(planned[0] - kPage), planned[0]);
  EXPECT_EQ(tokens_at(planned[0]), planned[1]);
  EXPECT_EQ(tokens_at(planned[0] + kPage), planned[1]);
}

TEST(OptimalChunksTest, WhatWasCutBehindAPrefixCountsFromThere) {
  const std::vector<StageCost> costs = {kCost, kCost.Times(1.5)};
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kOptimal));
  policy->SetCosts(costs);
  const std::vector<int> planned = PlanOptimal({32'768, 32'768, kPage}, costs, 8192);
  EXPECT_EQ(policy->PlanTokens({32'768, 32'768}), planned[0]);
  const int second = 32'768 + planned[0];
  EXPECT_EQ(policy->PlanTokens({second, 65'536 - second}), planned[1]);
  // The tokens before it were not planned.
  EXPECT_EQ(policy->PlanTokens({0, 65'536}), PlanOptimal({0, 65'536, kPage}, costs, 8192)[0]);
}

TEST(OptimalChunksTest, NoChunkIsLargerThanTheMost) {
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kOptimal, 1024));
  policy->SetCosts({kCost, kCost});
  for (const int tokens : Cut(*policy, 100'000)) EXPECT_LE(tokens, 1024);
}

TEST(OptimalChunksTest, ChunksFollowCostsThatMove) {
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kOptimal, 1 << 18));
  policy->SetCosts({kCost, kCost});
  const int before = policy->PlanTokens({0, 65'536});
  StageCost little_overhead = kCost;
  little_overhead.overhead_us = 20;
  policy->SetCosts({little_overhead, little_overhead});
  EXPECT_LT(policy->PlanTokens({before, 65'536 - before}), before / 2);
  StageCost a_bit_more = little_overhead;
  a_bit_more.token_us *= 1.02;
  const int now = policy->PlanTokens({before, 65'536 - before});
  policy->SetCosts({a_bit_more, little_overhead});
  EXPECT_NEAR(policy->PlanTokens({before, 65'536 - before}), now, 0.05 * now);
}

TEST(OptimalChunksTest, WhileOthersWaitOverheadIsASeventh) {
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kOptimal, 1 << 18));
  policy->SetCosts({kCost, kCost, kCost, kCost});
  const int alone = policy->PlanTokens({0, 8192, 0});
  const int few_others = policy->PlanTokens({0, 8192, 100});
  const int busy = policy->PlanTokens({0, 8192, 1'000'000});
  EXPECT_EQ(few_others, alone) << "they don't fill the bubbles";
  EXPECT_GT(busy, alone);
  const double share = kCost.overhead_us / kCost.Micros(0, busy);
  EXPECT_NEAR(share, 1.0 / 7, 0.001);
  // After a long prefix fewer tokens take as long.
  EXPECT_LT(policy->PlanTokens({500'000, 8192, 1'000'000}), busy / 10);
}

TEST(OptimalChunksTest, AChainOfOneStageLearnsWhileOthersWait) {
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kOptimal, 2048));
  EXPECT_EQ(policy->PlanTokens({0, 8192}), 2048);
  EXPECT_EQ(policy->PlanTokens({0, 8192, 100}), 1024) << "plans of one size teach nothing";
  EXPECT_EQ(policy->PlanTokens({1024, 7168, 100}), 2048);
  policy->SetCosts({kCost});
  EXPECT_GT(policy->PlanTokens({0, 8192, 100'000}), 1024) << "costs are known";
}

TEST(OptimalChunksTest, AFloorIsFilled) {
  StageCost floored = kCost;
  floored.overhead_us = 0;
  floored.floor_tokens = 500;
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kOptimal, 8192));
  policy->SetCosts({floored, floored});
  EXPECT_EQ(policy->PlanTokens({0, 8192, 1'000'000}), 512) << "whole pages";
}

TEST(OptimalChunksTest, AnotherPromptHasAPlanOfItsOwn) {
  const auto policy = MakeChunkPolicy(OptionsOf(ChunkRule::kOptimal, 1 << 18));
  policy->SetCosts({kCost, kCost});
  const int of_long = policy->PlanTokens({0, 262'144});
  const int of_short = policy->PlanTokens({0, 4096});
  EXPECT_LT(of_short, of_long);
  EXPECT_EQ(policy->PlanTokens({0, 262'144}), of_long);
}

}  // namespace
}  // namespace baton
