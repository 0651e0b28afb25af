// What the planner learns of its stages, and what it makes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/chunking/stage_cost.h"
#include "services/prefill/core/planner_fixture.h"

namespace baton::prefill {
namespace {

using ::testing::HasSubstr;

constexpr StageCost kCost = {.overhead_us = 500, .token_us = 50, .attention_us = 0.02};

class PlannerCostsTest : public PlannerTest {
 protected:
  static PlannerLimits LimitsOf(ChunkRule rule) {
    PlannerLimits limits = Limits();
    limits.chunk_rule = rule;
    limits.chunk_tokens = 256;
    limits.max_context_tokens = 4000;
    return limits;
  }
  PlannerCostsTest() : PlannerTest(LimitsOf(ChunkRule::kOptimal)) {}

  StageCost cost_ = kCost;
  bool last_stage_tells_ = true;  // What its plans take.

  // What the chain's stages take for the plan, told by each of them.
  void Run(const Plan& plan, double slower = 1) {
    PlanWork work;
    for (const PlanItem& item : plan.items) work.Add(item.token_begin, item.token_count);
    const auto micros = static_cast<int64_t>(cost_.Micros(work) * slower);
    for (int stage = 0; stage < 2; ++stage) {
      const bool tells = stage == 0 || last_stage_tells_;
      Send(StagePlanDone{stage, kEpoch, {plan.number, tells ? micros : 0, 1}});
      for (const PlannerAction& action : actions_) {
        if (const auto* seen = std::get_if<ObservePlan>(&action)) observed_.push_back(*seen);
      }
    }
  }
  // A prompt alone in the chain: its chunks.
  std::vector<int> Prefill(uint64_t attempt, int tokens, double slower = 1) {
    std::vector<int> chunks;
    const size_t before = plans_.size();
    Start(attempt, tokens);
    for (size_t i = before; i < plans_.size(); ++i) {
      const Plan plan = plans_[i];
      for (const PlanItem& item : plan.items) chunks.push_back(item.token_count);
      Run(plan, slower);
    }
    for (int stage = 0; stage < 2; ++stage) Closed(stage, attempt);
    return chunks;
  }
  // Enough of prompts for anybody to know what they cost.
  void Learn() {
    uint64_t attempt = 100;
    for (const int tokens : {2000, 900, 100, 1500, 300, 700}) Prefill(++attempt, tokens);
  }
  const char* Missing() const { return planner_->costs().front().missing; }
  bool Known() const {
    for (const LearnedCost& stage : planner_->costs()) {
      if (!stage.cost.has_value()) return false;
    }
    return !planner_->costs().empty();
  }

  std::vector<ObservePlan> observed_;
};

TEST_F(PlannerCostsTest, CutsByWhatItKnowsAndSaysWhyItDoesNot) {
  Up(2, 300);
  EXPECT_THAT(Missing(), HasSubstr("too few"));
  EXPECT_EQ(planner_->costs()[0].layers, 0) << "nobody has said";
  const std::vector<int> first = Prefill(1, 2000);
  EXPECT_EQ(first, (std::vector<int>{256, 256, 256, 256, 256, 256, 256, 208}));
  EXPECT_FALSE(Known());
  EXPECT_TRUE(observed_.empty());
  Prefill(2, 900);
  Prefill(3, 100);
  EXPECT_TRUE(Known());
  EXPECT_EQ(Missing(), nullptr);
  const std::vector<int> later = Prefill(4, 2000);
  EXPECT_NE(later, first);
  EXPECT_LT(later.back(), later.front()) << "the later, the smaller: all take the same time";
  ASSERT_FALSE(observed_.empty());
  EXPECT_EQ(observed_.back().stage, 1);
  EXPECT_EQ(observed_.back().tokens, later.back());
  EXPECT_NEAR(static_cast<double>(observed_.back().compute_us), observed_.back().predicted_us,
              0.1 * observed_.back().predicted_us);
}

TEST_F(PlannerCostsTest, CostsAreKnownWhenThoseOfEveryStageAre) {
  Up(2, 300);
  last_stage_tells_ = false;
  Learn();
  EXPECT_TRUE(planner_->costs()[0].cost.has_value());
  EXPECT_FALSE(planner_->costs()[1].cost.has_value());
  EXPECT_TRUE(observed_.empty()) << "nothing is predicted";
  EXPECT_EQ(Prefill(1, 2000), (std::vector<int>{256, 256, 256, 256, 256, 256, 256, 208}));
}

TEST_F(PlannerCostsTest, WhatStagesSayIsComparedWithThePrediction) {
  Send(ChainUp{kEpoch, 2, 300, {3, 4}, {{kCost, 0.1}, {kCost, 0.1}}});
  Start(1, 100);
  const auto observed = [this](int stage, int64_t compute_us) {
    Send(StagePlanDone{stage, kEpoch, {1, compute_us, 1}});
    return std::count_if(actions_.begin(), actions_.end(), [](const PlannerAction& action) {
      return std::holds_alternative<ObservePlan>(action);
    });
  };
  EXPECT_EQ(observed(0, 1), 1);
  EXPECT_EQ(observed(1, 0), 0) << "it does not say";
}

TEST_F(PlannerCostsTest, WhatWasLearnedOutlivesAnEpochOfTheSameStages) {
  Up(2, 300);
  Prefill(1, 2000);
  Prefill(2, 900);
  Prefill(3, 100);
  ASSERT_TRUE(Known());
  Send(ChainDown{absl::UnavailableError("a stage is gone")});
  Send(ChainUp{kEpoch, 2, 300});
  EXPECT_TRUE(Known());
  Send(ChainDown{absl::UnavailableError("a stage is gone")});
  Send(ChainUp{kEpoch, 3, 300});
  EXPECT_FALSE(Known()) << "other stages hold other layers";
  EXPECT_EQ(planner_->costs().size(), 3u);
}

TEST_F(PlannerCostsTest, BeginsWithWhatIsKnownOfItsStages) {
  Send(ChainUp{kEpoch, 2, 300, {3, 4}, {{kCost, 0.1}, {kCost.Times(1.1), 0.2}}});
  ASSERT_TRUE(Known());
  const std::vector<LearnedCost> costs = planner_->costs();
  EXPECT_EQ(costs[0].layers, 3);
  EXPECT_EQ(costs[1].layers, 4);
  EXPECT_EQ(costs[1].error, 0.2);
  EXPECT_EQ(costs[1].plans, 0u);
  EXPECT_NEAR(costs[1].cost->Micros(100, 64), 1.1 * kCost.Micros(100, 64), 1e-6);
  EXPECT_LT(Prefill(1, 2000).front(), 256) << "cut by it from the first prompt on";
  EXPECT_GT(planner_->costs()[0].plans, 0u);
}

TEST_F(PlannerCostsTest, WhatWasLearnedOfOtherLayersIsForgotten) {
  const auto up = [this](std::vector<int> layers, std::vector<KnownCost> known) {
    Send(ChainDown{absl::UnavailableError("a stage is gone")});
    Send(ChainUp{kEpoch, 2, 300, std::move(layers), std::move(known)});
  };
  up({3, 4}, {});
  Learn();
  ASSERT_TRUE(Known());
  up({3, 4}, {{kCost.Times(9), 0}, {kCost.Times(9), 0}});
  EXPECT_GT(planner_->costs()[0].plans, 0u) << "what was learned here is better";
  EXPECT_NEAR(planner_->costs()[0].cost->Micros(500, 200), kCost.Micros(500, 200), 1000);
  up({4, 3}, {});
  EXPECT_FALSE(Known());
  up({5, 2}, {{kCost, 0}, {kCost, 0}});
  EXPECT_TRUE(Known());
}

TEST_F(PlannerCostsTest, AStageThatSlowsDownIsPlannedFor) {
  Up(2, 300);
  Learn();
  Prefill(1, 2000);
  for (uint64_t attempt = 2; attempt < 8; ++attempt) Prefill(attempt, 2000, 3.5);
  ASSERT_TRUE(Known());
  const StageCost learned = *planner_->costs().front().cost;
  EXPECT_NEAR(learned.Micros(500, 200), 3.5 * kCost.Micros(500, 200), 1000);
}

// The first page of a prompt that begins is given before the rest of its chunk.
TEST_F(PlannerCostsTest, AChunkThatIsGivenInTwoPartsIsAsLongAsOneOfOnePart) {
  cost_.prefix_us = 2;
  Up(2, 300);
  Learn();
  Learn();
  const std::vector<LearnedCost> learned = planner_->costs();
  ASSERT_GT(learned.front().cost->prefix_us, 0.5);
  const auto policy = MakeChunkPolicy({.rule = ChunkRule::kOptimal,
                                       .page_size = kPageSize,
                                       .chunk_tokens = 256,
                                       .max_context_tokens = 4000});
  policy->SetCosts({*learned[0].cost, *learned[1].cost});
  std::vector<int> expected;
  for (int left = 1000; left > 0; left -= expected.back()) {
    expected.push_back(std::min(left, policy->PlanTokens({1000 - left, left, 0, 2})));
  }
  EXPECT_EQ(Prefill(1, 1000), expected);
}

// Behind 60,000 tokens a page takes as long as thousands of a prompt's begin.
class SharesByTimeTest : public PlannerCostsTest {
 protected:
  static PlannerLimits LimitsOf(ChunkRule rule) {
    PlannerLimits limits = PlannerCostsTest::LimitsOf(rule);
    limits.max_context_tokens = 100'000;
    limits.plan_window = limits.stage0_lead = 1;
    return limits;
  }
  // Tokens of the next plans, by attempt, until `attempt` has `tokens`.
  std::vector<std::map<uint64_t, int>> PlansUntil(uint64_t attempt, int tokens) {
    std::vector<std::map<uint64_t, int>> plans;
    while (plans.size() < 5000) {
      auto& shares = plans.emplace_back();
      for (const PlanItem& item : plans_.back().items) {
        shares[item.attempt_id] = item.token_count;
        if (item.attempt_id == attempt && item.token_begin + item.token_count >= tokens) {
          return plans;
        }
      }
      Run(plans_.back());
    }
    ADD_FAILURE() << "5,000 plans";
    return plans;
  }
  void BehindALongOne(ChunkRule rule, int prefix) {
    Make(LimitsOf(rule));
    Up(2, 10'000);
    Learn();
    ASSERT_TRUE(Known());
    Start(1, 90'000);
    PlansUntil(1, prefix);
  }
};

// While it waits plans have a page, of which every second is its. Of tokens that were 19 plans.
TEST_F(SharesByTimeTest, AShortPromptIsThroughAtOnceBehindALongOne) {
  BehindALongOne(ChunkRule::kOptimal, 60'000);
  Start(2, 150);
  const auto plans = PlansUntil(2, 150);
  EXPECT_LE(plans.size(), 3u);
  EXPECT_EQ(plans.back(), (std::map<uint64_t, int>{{2, 150}}));
}

TEST_F(SharesByTimeTest, PlansByTokensShareTokens) {
  BehindALongOne(ChunkRule::kFixed, 60'000);
  Start(2, 150);
  EXPECT_EQ(PlansUntil(2, 150).size(), 3u) << "half of 256 in each";
}

TEST_F(SharesByTimeTest, TheLongOneKeepsHalfOfTheTime) {
  BehindALongOne(ChunkRule::kOptimal, 40'000);
  for (uint64_t attempt = 2; attempt < 20; ++attempt) Start(attempt, 3000);
  double long_us = 0;
  double short_us = 0;
  for (int plan = 0; plan < 60; ++plan) {
    Run(plans_.back());
    EXPECT_LE(plans_.back().TokenCount(), 256);
    for (const PlanItem& item : plans_.back().items) {
      (item.attempt_id == 1 ? long_us : short_us) +=
          kCost.WorkMicros(item.token_begin, item.token_count);
    }
  }
  EXPECT_GT(long_us, 0.95 * short_us);
  EXPECT_GT(short_us, 0.3 * long_us);
}

// Its half of the time is worth more tokens of a prompt's begin than a plan has room for.
TEST_F(SharesByTimeTest, TheLongOneKeepsItsRoom) {
  cost_.overhead_us = 16'000;
  BehindALongOne(ChunkRule::kOptimal, 20'000);
  Start(2, 15'000);
  Run(plans_.back());
  for (int plan = 0; plan < 10; ++plan) {
    Run(plans_.back());
    std::map<uint64_t, int> tokens;
    for (const PlanItem& item : plans_.back().items) tokens[item.attempt_id] = item.token_count;
    EXPECT_GE(tokens[1], 2 * kPageSize);
    EXPECT_GE(tokens[2], 128);
    EXPECT_EQ(plans_.back().TokenCount(), 256);
  }
}

TEST_F(SharesByTimeTest, WhatTheShortestLeavesIsNobodysWhoComesAfterIt) {
  BehindALongOne(ChunkRule::kOptimal, 20'000);
  Start(2, 10'500);
  PlansUntil(2, 5000);
  Start(3, 15'000);  // Its first pages are cheaper.
  const auto plans = PlansUntil(2, 10'500);
  for (size_t i = 0; i + 1 < plans.size(); ++i) EXPECT_FALSE(plans[i].contains(3)) << i;
}

// Its first page is given already when the others are compared with what it has left.
TEST_F(SharesByTimeTest, WhoCostsLittleLessThanTheRestOfOneThatBeginsHasAShare) {
  Make(LimitsOf(ChunkRule::kOptimal));
  Send(ChainUp{kEpoch, 2, 10'000, {}, {{kCost, 0.1}, {kCost, 0.1}}});
  Start(1, 16);
  Start(2, 2000);
  Start(3, 1984);
  Run(plans_.back());
  ASSERT_EQ(plans_.back().opens.at(0).attempt_id, 2u);
  EXPECT_EQ(plans_.back().opens.size(), 2u);
}

// It began while another one led, and now has a longer prefix than the leader.
TEST_F(SharesByTimeTest, APageThatCostsMoreThanAPlanHasItsTurn) {
  PlannerLimits limits = LimitsOf(ChunkRule::kOptimal);
  Make(limits);
  Up(2, 10'000);
  Learn();
  Start(1, 60'000);
  PlansUntil(1, 30'000);
  Start(2, 50'000);
  Start(3, 45'000);
  PlansUntil(1, 60'000);
  for (int stage = 0; stage < 2; ++stage) Closed(stage, 1);
  double leader_us = 0;
  double further_us = 0;
  for (int plan = 0; plan < 200; ++plan) {
    Run(plans_.back());
    for (const PlanItem& item : plans_.back().items) {
      (item.attempt_id == 2 ? leader_us : further_us) +=
          kCost.WorkMicros(item.token_begin, item.token_count);
    }
  }
  EXPECT_GT(further_us, 0.4 * leader_us);
  EXPECT_LT(further_us, 1.5 * leader_us);
}

TEST_F(SharesByTimeTest, WhoHasLessToComputeIsTheShorterOneThoughItHasMoreTokens) {
  BehindALongOne(ChunkRule::kOptimal, 85'000);
  Start(2, 7000);  // The long one has 5,000 left, of 3.4 ms each and more.
  EXPECT_LE(PlansUntil(2, 16).size(), 5u);
}

TEST_F(PlannerCostsTest, WholePromptsAreNotCutByAnyRule) {
  for (const ChunkRule rule : {ChunkRule::kFixed, ChunkRule::kSglang, ChunkRule::kOptimal}) {
    PlannerLimits limits = LimitsOf(rule);
    limits.chunk_tokens = INT_MAX;
    Make(limits);
    Up(2, 300);
    EXPECT_EQ(Prefill(1, 3999), std::vector<int>{3999});
    Learn();
    Prefill(2, 50);
    EXPECT_EQ(Prefill(3, 3999), std::vector<int>{3999});
  }
}

// A chain of one stage that knows what plans cost, with the first 256 tokens of a prompt of 512.
class HeldPlanTest : public PlannerCostsTest {
 protected:
  HeldPlanTest() {
    Make(LimitsOf(ChunkRule::kFixed));
    Send(ChainUp{kEpoch, 1, 300, {3}, {{kCost, 0.1}}});
    Start(1, 512);
  }
  // Five milliseconds, and an eighth of the plan, before it is through.
  const int64_t plan_us_ = static_cast<int64_t>(kCost.Micros(0, 256));
  const int64_t due_us_ = now_us_ + plan_us_ - plan_us_ / 8 - 5'000;
};

TEST_F(HeldPlanTest, HasWhatComesWhileALongOneRuns) {
  ASSERT_EQ(plans_.size(), 1u);
  EXPECT_EQ(planner_->NextDeadlineUs(), due_us_);
  now_us_ += 5'000;
  Start(2, 16);
  ASSERT_EQ(plans_.size(), 1u);
  now_us_ = due_us_;
  Send(Tick{});
  ASSERT_EQ(plans_.size(), 2u);
  EXPECT_EQ(plans_[1].items.size(), 2u);
  EXPECT_GT(planner_->NextDeadlineUs(), now_us_) << "nothing is to be done at once";
}

TEST_F(HeldPlanTest, GoesOutWhenStage0IsDoneSooner) {
  now_us_ += 1'000;
  Done(0, 1);
  EXPECT_EQ(plans_.size(), 2u);
}

TEST_F(HeldPlanTest, GoesOutWithAnAbort) {
  Send(AbortRequested{1, absl::CancelledError("client")});
  ASSERT_EQ(plans_.size(), 2u);
  EXPECT_EQ(plans_[1].aborts.size(), 1u);
}

TEST_F(PlannerCostsTest, SglangsRuleCutsByWhatIsKnown) {
  PlannerLimits limits = LimitsOf(ChunkRule::kSglang);
  Make(limits);
  Up(2, 300);
  Learn();
  const std::vector<int> chunks = Prefill(1, 3000);
  EXPECT_EQ(chunks.front(), 256);
  EXPECT_LT(chunks[1], 256);
  EXPECT_GE(chunks[chunks.size() - 2], 64) << "not less than a quarter of the base";
}

}  // namespace
}  // namespace baton::prefill
