// Requests without a ticket: the chain decodes them.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "services/prefill/core/planner_fixture.h"

namespace baton::prefill {
namespace {

TEST_F(DecodingTest, FeedsEachTokenUntilTheLast) {
  Up(1);
  Generate(1, 20, 3);
  ASSERT_EQ(plans_.size(), 1u);
  const PlanItem prompt = plans_[0].items.at(0);
  EXPECT_EQ(prompt.token_count, 20);
  EXPECT_TRUE(prompt.draws);
  EXPECT_FALSE(prompt.final);
  EXPECT_FALSE(plans_[0].opens.at(0).ticket.has_value());
  EXPECT_EQ(plans_[0].opens[0].prompt_tokens(), 20);
  EXPECT_EQ(plans_[0].opens[0].pages.size(), 2u);  // 20 + 3 tokens.

  Drawn(0, plans_[0], 41);
  ASSERT_EQ(All<PromptDone>().size(), 1u);
  EXPECT_EQ(All<PromptDone>()[0].outcome.chunks.size(), 1u);
  ASSERT_EQ(All<DeliverToken>().size(), 1u);
  EXPECT_EQ(All<DeliverToken>()[0].token.token, 41);
  ASSERT_EQ(plans_.size(), 2u);
  const PlanItem row = plans_[1].items.at(0);
  EXPECT_EQ(row.token_begin, 20);
  EXPECT_EQ(row.token_count, 1);
  EXPECT_EQ(row.token, 41);
  EXPECT_TRUE(row.draws);

  Drawn(0, plans_[1], 42);
  EXPECT_TRUE(All<PromptDone>().empty());
  EXPECT_EQ(plans_.at(2).items.at(0).token, 42);
  EXPECT_EQ(plans_[2].items[0].token_begin, 21);
  Drawn(0, plans_[2], 43);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(finished_[0].status.ok()) << finished_[0].status;
  EXPECT_EQ(finished_[0].reason, FinishReason::kLength);
  EXPECT_TRUE(std::holds_alternative<DeliverToken>(actions_[0])) << "a token after the end";
  // The stages close it by the next plan, and then its pages are free.
  EXPECT_EQ(plans_.at(3).aborts, std::vector<uint64_t>{1});
  Done(0, 4);
  EXPECT_EQ(planner_->load().owned_pages, 2);
  Closed(0, 1);
  EXPECT_EQ(planner_->load().owned_pages, 0);
  EXPECT_TRUE(planner_->AtRest());
}

TEST_F(DecodingTest, AStopTokenIsDeliveredAndEndsTheText) {
  Up(1);
  Generate(1, 20, 30);
  Drawn(0, plans_[0], 41);
  Drawn(0, plans_[1], kEos);
  EXPECT_EQ(All<DeliverToken>().at(0).token.token, kEos);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].reason, FinishReason::kStop);
}

TEST_F(DecodingTest, TheContextBoundsTheText) {
  Up(1);
  Generate(1, 998, 30);
  while (finished_.empty()) Drawn(0, plans_.back(), 41);
  EXPECT_EQ(finished_[0].reason, FinishReason::kLength);
  const auto decode_steps = std::count_if(plans_.begin(), plans_.end(), [](const Plan& plan) {
    return !plan.items.empty() && plan.items[0].token_begin >= 998;
  });
  EXPECT_EQ(decode_steps, 1);  // 998 + 2 = 1000; the last token is not fed.
}

TEST_F(DecodingTest, RowsTakeTheirTokensFromTheChunksBesideThem) {
  Up(1);
  Generate(1, 20, 30);
  Drawn(0, plans_[0], 41);
  Start(2, 200);
  // The plan with the row is under way, so the next one waits for its token.
  ASSERT_EQ(plans_.size(), 2u);
  Drawn(0, plans_[1], 42);
  const Plan& mixed = plans_.at(2);
  ASSERT_EQ(mixed.items.size(), 2u);
  EXPECT_EQ(mixed.items[0].attempt_id, 1u);
  EXPECT_EQ(mixed.items[1].attempt_id, 2u);
  EXPECT_EQ(mixed.items[1].token_count, 48);  // 63 in whole pages.
  EXPECT_LE(mixed.TokenCount(), planner_->max_plan_tokens());
}

TEST_F(DecodingTest, StagesShareTheRows) {
  PlannerLimits limits = Decoding();
  limits.stage0_lead = 3;
  Make(limits);
  Up(2);
  for (uint64_t attempt = 1; attempt <= 4; ++attempt) Generate(attempt, 16, 30);
  for (size_t number = 1; number <= 12; ++number) {
    const Plan plan = plans_.at(number - 1);
    Done(0, number);
    Drawn(1, plan, 41);
  }
  std::vector<uint64_t> rows;
  for (size_t i = 8; i < 12; ++i) {
    EXPECT_EQ(Rows(plans_[i]).size(), 2u) << "plan " << i + 1;
    for (const uint64_t attempt : Rows(plans_[i])) rows.push_back(attempt);
  }
  ASSERT_EQ(rows.size(), 8u);
  EXPECT_EQ(std::set<uint64_t>(rows.begin(), rows.begin() + 4).size(), 4u) << "each in its turn";
}

TEST_F(DecodingTest, PagesForTheTextAreHeldFromTheBeginning) {
  Up(1, 8);
  Generate(1, 16, 64);  // 5 pages.
  Generate(2, 16, 48);  // 4: waits.
  EXPECT_EQ(planner_->load().owned_pages, 5);
  EXPECT_EQ(planner_->load().queued, 1);
  Generate(3, 100, 100);  // 13: never fits.
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(finished_[0].status)) << finished_[0].status;
}

TEST_F(DecodingTest, AnAbortEndsItBetweenTokens) {
  Up(1);
  Generate(1, 20, 30);
  Drawn(0, plans_[0], 41);
  Send(AbortRequested{1, absl::CancelledError("client")});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(finished_[0].status));
  // Its row is under way. The token that it draws is dropped.
  Drawn(0, plans_[1], 42);
  EXPECT_TRUE(All<DeliverToken>().empty());
  EXPECT_EQ(plans_.at(2).aborts, std::vector<uint64_t>{1});
  Done(0, 3);
  Closed(0, 1);
  EXPECT_TRUE(planner_->AtRest());
}

TEST_F(DecodingTest, AnAbortMeetsARowThatWaits) {
  PlannerLimits limits = Decoding();
  limits.max_open_requests = 8;
  Make(limits);
  Up(2);
  Start(10, 64);
  Start(11, 64);
  for (uint64_t attempt = 1; attempt <= 3; ++attempt) Generate(attempt, 16, 30);
  Done(0, 1);  // The third plan has their prompts.
  Generate(4, 16, 30);
  Done(1, 1);
  Done(0, 2);
  Done(1, 2);
  ASSERT_EQ(plans_.size(), 4u);
  Done(0, 3);
  Drawn(1, plans_[2], 41);
  ASSERT_EQ(Rows(plans_.at(4)), (std::vector<uint64_t>{1, 2})) << "the third one waits";
  Send(AbortRequested{3, absl::CancelledError("client")});
  Done(0, 4);
  Drawn(1, plans_[3], 41);
  EXPECT_EQ(plans_.at(5).aborts, std::vector<uint64_t>{3});
  EXPECT_EQ(Rows(plans_[5]), std::vector<uint64_t>{4});
}

TEST_F(DecodingTest, AFailedDrawEndsItsRequestAlone) {
  Up(1);
  Generate(1, 16, 30);
  Generate(2, 16, 30);
  Drawn(0, plans_[0], 41);
  Drawn(0, plans_[1], 41);
  Plan both = plans_.back();
  ASSERT_EQ(both.items.size(), 2u);
  Send(StagePlanDone{0,
                     kEpoch,
                     {both.number,
                      10,
                      1,
                      {},
                      {{1, absl::InternalError("no logit is finite")}, {2, SampledToken{42}}}}});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].attempt_id, 1u);
  EXPECT_EQ(Rows(plans_.back()), std::vector<uint64_t>{2});
}

TEST_F(DecodingTest, WhatTheLastStageOwesOrInventsEndsTheRequest) {
  const std::vector<std::vector<DrawnToken>> wrong = {
      {}, {{2, SampledToken{41}}}, {{1, SampledToken{100}}}, {{1, SampledToken{-1}}}};
  for (const std::vector<DrawnToken>& drawn : wrong) {
    Make(Decoding());
    Up(1);
    Generate(1, 16, 30);
    Send(StagePlanDone{0, kEpoch, {1, 10, 1, {}, drawn}});
    ASSERT_EQ(finished_.size(), 1u);
    EXPECT_TRUE(absl::IsInternal(finished_[0].status)) << finished_[0].status;
  }
}

TEST_F(DecodingTest, PromptTokensAreToldBeforeTheFirstToken) {
  Up(1);
  Generate(1, 3, 30, /*prompt_logprobs=*/true);
  PlanDone done{1, 10, 1, {{1, 1, {SampledToken{5}, SampledToken{6}}}}, {{1, SampledToken{41}}}};
  Send(StagePlanDone{0, kEpoch, done});
  ASSERT_EQ(All<PromptDone>().size(), 1u);
  EXPECT_EQ(All<PromptDone>()[0].outcome.prompt_tokens.size(), 2u);
  EXPECT_EQ(All<DeliverToken>().size(), 1u);
}

TEST_F(DecodingTest, MissingPromptTokensAreAnError) {
  Up(1);
  Generate(1, 3, 30, /*prompt_logprobs=*/true);
  Drawn(0, plans_[0], 41);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(absl::IsInternal(finished_[0].status)) << finished_[0].status;
  EXPECT_TRUE(All<DeliverToken>().empty());
}

TEST_F(DecodingTest, AChainThatDoesNotDecodeWantsATicket) {
  Make(Limits());
  Up(1);
  Generate(1, 16, 30);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(absl::IsFailedPrecondition(finished_[0].status)) << finished_[0].status;
}

TEST_F(DecodingTest, APromptThatFillsTheContextIsRefused) {
  Up(1);
  Generate(1, 1000, 1);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(FieldOf(finished_[0].status), "prompt_token_ids");
}

TEST_F(DecodingTest, TheChainGoesDownUnderADecodingRequest) {
  Up(1);
  Generate(1, 16, 30);
  Drawn(0, plans_[0], 41);
  Send(ChainDown{absl::UnavailableError("gone")});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(planner_->AtRest());
  Send(ChainUp{kEpoch + 1, 1, 64});
  EXPECT_TRUE(planner_->AtRest());
}

// A prompt of 64 tokens a plan costs 6,400 us.
class TargetItlTest : public DecodingTest {
 protected:
  void UpWithCosts(int64_t target_itl_us) {
    PlannerLimits limits = Decoding();
    limits.target_itl_us = target_itl_us;
    Make(limits);
    const KnownCost cost{{.overhead_us = 100, .token_us = 100}, 0.05};
    Send(ChainUp{kEpoch, 1, 64, {1}, {cost}});
    Generate(1, 16, 30);
    Drawn(0, plans_[0], 41);
    Start(2, 200);
    Drawn(0, plans_.at(1), 42);
  }
  int ChunkBesideTheRow() const {
    const Plan& plan = plans_.at(2);
    return plan.items.size() == 2 ? plan.items[1].token_count : 0;
  }
};

TEST_F(TargetItlTest, BoundsTheChunksBesideRows) {
  UpWithCosts(3'500);
  EXPECT_EQ(ChunkBesideTheRow(), 32);  // 100 + 33 * 100 us.
}

TEST_F(TargetItlTest, LeavesAPageToPrompts) {
  UpWithCosts(1);
  EXPECT_EQ(ChunkBesideTheRow(), 16);
}

TEST_F(TargetItlTest, LeavesTwoPagesWhileCostsAreNotKnown) {
  PlannerLimits limits = Decoding();
  limits.target_itl_us = 1'000'000;
  Make(limits);
  Up(1);
  Generate(1, 16, 30);
  Drawn(0, plans_[0], 41);
  Start(2, 200);
  Drawn(0, plans_.at(1), 42);
  EXPECT_EQ(ChunkBesideTheRow(), 32);
}

TEST_F(TargetItlTest, IsOffByDefault) {
  UpWithCosts(0);
  EXPECT_EQ(ChunkBesideTheRow(), 48);
}

TEST_F(TargetItlTest, DoesNotBoundPlansWithoutRows) {
  UpWithCosts(1);
  Send(AbortRequested{1, absl::CancelledError("client")});
  Drawn(0, plans_[2], 43);
  EXPECT_EQ(plans_.back().items.at(0).token_count, 64);
}

class AheadTest : public DecodingTest {
 protected:
  static PlannerLimits Ahead() {
    PlannerLimits limits = Decoding();
    limits.feeds_ahead = true;
    return limits;
  }
  AheadTest() : DecodingTest(Ahead()) {}
};

TEST_F(AheadTest, APlanHasTheStepsBehindThoseOfThePlanThatRuns) {
  Up(1);
  Generate(1, 20, 4);
  ASSERT_EQ(plans_.size(), 2u) << "the step behind the prompt is at hand";
  EXPECT_EQ(plans_[1].items.at(0).token_begin, 20);
  EXPECT_EQ(plans_[1].items[0].token, kTokenAhead);
  EXPECT_TRUE(plans_[1].items[0].draws);
  Drawn(0, plans_[0], 41);
  EXPECT_EQ(All<DeliverToken>().at(0).token.token, 41);
  ASSERT_EQ(plans_.size(), 3u);
  EXPECT_EQ(plans_[2].items.at(0).token_begin, 21);
  EXPECT_EQ(plans_[2].items[0].token, kTokenAhead);
  Drawn(0, plans_[1], 42);
  ASSERT_EQ(plans_.size(), 4u);
  EXPECT_EQ(plans_[3].items.at(0).token_begin, 22) << "draws the last token";
  Drawn(0, plans_[2], 43);
  EXPECT_EQ(plans_.size(), 4u) << "no step is in vain that the length foresees";
  Drawn(0, plans_[3], 44);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].reason, FinishReason::kLength);
}

TEST_F(AheadTest, AStepBehindAStopTokenIsInVain) {
  Up(1);
  Generate(1, 20, 30);
  Drawn(0, plans_[0], 41);
  Drawn(0, plans_[1], kEos);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].reason, FinishReason::kStop);
  ASSERT_EQ(plans_.size(), 4u);
  EXPECT_EQ(plans_[3].aborts, std::vector<uint64_t>{1});
  Closed(0, 1);
  EXPECT_GT(planner_->load().owned_pages, 0) << "a step uses its pages";
  Drawn(0, plans_[2], 43);
  EXPECT_TRUE(All<DeliverToken>().empty());
  Done(0, 4);
  EXPECT_EQ(planner_->load().owned_pages, 0);
  EXPECT_TRUE(planner_->AtRest());
}

TEST_F(AheadTest, ADrawThatFailsEndsItsRequestAndTheStepBehindItCountsForNothing) {
  Up(1);
  Generate(1, 20, 30);
  PlanDone done{1, 10, 1, {}, {}};
  done.drawn.push_back({1, absl::InternalError("a logit is not finite")});
  Send(StagePlanDone{0, kEpoch, done});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].status.code(), absl::StatusCode::kInternal);
  Drawn(0, plans_[1], 42);
  EXPECT_TRUE(All<DeliverToken>().empty());
}

// The next plan stays open until shortly before the steps are expected to end.
TEST_F(AheadTest, APromptThatComesWhileAStepRunsIsReadInTheNextPlan) {
  Up(1);
  Generate(1, 20, 30);
  Drawn(0, plans_[0], 41);
  ASSERT_EQ(plans_.size(), 3u) << "what a step takes is not known";
  Send(StagePlanDone{0, kEpoch, {2, 16'000, 1, {}, {{1, SampledToken{42, -1, {}}}}}});
  EXPECT_EQ(plans_.size(), 3u);
  const int64_t due_us = now_us_ + 16'000 - 2'000 - 1'000;
  EXPECT_EQ(planner_->NextDeadlineUs(), due_us);
  Generate(2, 16, 30);
  now_us_ = due_us - 1;
  Send(Tick{});
  EXPECT_EQ(plans_.size(), 3u);
  now_us_ = due_us;
  Send(Tick{});
  ASSERT_EQ(plans_.size(), 4u);
  EXPECT_EQ(plans_[3].items.at(0).token, kTokenAhead);
  EXPECT_EQ(plans_[3].items.at(1).attempt_id, 2u);
}

TEST_F(AheadTest, OnlyWhoDrawsFeedsAhead) {
  Up(2);
  Generate(1, 20, 30);
  EXPECT_EQ(plans_.size(), 1u);
  Send(ChainDown{absl::UnavailableError("over")});
  Send(ChainUp{.epoch = kEpoch + 1, .stages = 1, .page_count = 64, .ranks = 2});
  Generate(2, 20, 30);
  EXPECT_EQ(plans_.size(), 2u);
}

}  // namespace
}  // namespace baton::prefill
