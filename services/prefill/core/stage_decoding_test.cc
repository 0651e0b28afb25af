// What a stage does with requests that the chain decodes itself.
#include <gtest/gtest.h>

#include "services/prefill/core/stage.h"
#include "services/prefill/core/stage_fixture.h"

namespace baton::prefill {
namespace {

using StageDecodingTest = StageTest;

// Attempt 1 without a ticket: a prompt of 20 tokens, with pages for 32.
Plan DecodedPlan(uint64_t number) {
  Plan plan{kEpoch, number, {}, {}, {}};
  if (number == 1) {
    plan.opens.push_back({1, std::nullopt, {10, 11}, 20});
    plan.items.push_back({.attempt_id = 1, .token_count = 20, .draws = true});
  } else {
    plan.items.push_back({.attempt_id = 1,
                          .token_begin = 18 + static_cast<int>(number),
                          .token_count = 1,
                          .draws = true,
                          .token = 40 + static_cast<int32_t>(number)});
  }
  return plan;
}

TEST_F(StageDecodingTest, DecodesWithoutATicketAndSendsNoKv) {
  Make(0, 1);
  Send(PlanArrived{DecodedPlan(1)});
  EXPECT_EQ(All<RunCompute>().at(0).items.at(0).generated, 0);
  Computed(1, {SampledToken{42}});
  EXPECT_FALSE(Has<SendKv>() || Has<SendCommit>());
  const std::vector<DrawnToken> first = All<ReportPlanDone>().at(0).done.drawn;
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].token->token, 42);

  Send(PlanArrived{DecodedPlan(2)});
  const RunCompute step = All<RunCompute>().at(0);
  EXPECT_EQ(step.items.at(0).generated, 1);
  EXPECT_EQ(step.items[0].item.token, 42);
  EXPECT_EQ(step.items[0].pages, (std::vector<int>{10, 11}));
  Computed(2, {absl::InternalError("no logit is finite")});
  EXPECT_FALSE(All<ReportPlanDone>().at(0).done.drawn.at(0).token.ok());
  EXPECT_FALSE(Has<ReportRequestClosed>()) << "stage 0 ends it";

  Plan end{kEpoch, 3, {}, {}, {1}};
  Send(PlanArrived{end});
  ASSERT_TRUE(Has<ReportRequestClosed>());
  EXPECT_TRUE(All<ReportRequestClosed>()[0].closed.status.ok());
  EXPECT_TRUE(stage_->AtRest());
}

TEST_F(StageDecodingTest, ADecodeStepMayBringAPage) {
  Make(0, 1);
  Plan open = DecodedPlan(1);
  open.opens[0].pages = {10};
  open.opens[0].decoded_prompt_tokens = 16;
  open.items[0].token_count = 16;
  Send(PlanArrived{open});
  Computed(1, {SampledToken{42}});
  Plan step = DecodedPlan(2);
  step.items[0].token_begin = 16;
  step.items[0].new_page = 14;
  Send(PlanArrived{step});
  ASSERT_TRUE(Has<RunCompute>());
  EXPECT_EQ(All<RunCompute>()[0].items.at(0).pages, (std::vector<int>{10, 14}));
  EXPECT_EQ(stage_->held_pages(), 2);
  Computed(2, {SampledToken{43}});
  Send(PlanArrived{Plan{kEpoch, 3, {}, {}, {1}}});
  EXPECT_EQ(stage_->held_pages(), 0);
}

TEST_F(StageDecodingTest, ReadsAgainWhatWasDrawnBefore) {
  Make(0, 1);
  Plan again = DecodedPlan(1);
  again.opens[0].drawn = {42, 43};
  again.items[0].token_count = 22;
  Send(PlanArrived{again});
  ASSERT_TRUE(Has<RunCompute>());
  const RunCompute::Item chunk = All<RunCompute>()[0].items.at(0);
  EXPECT_FALSE(chunk.decodes);
  EXPECT_EQ(chunk.generated, 2) << "the index of the token that it draws";
  Computed(1, {SampledToken{44}});
  Plan step = DecodedPlan(2);
  step.items[0].token_begin = 22;
  Send(PlanArrived{step});
  ASSERT_TRUE(Has<RunCompute>());
  EXPECT_TRUE(All<RunCompute>()[0].items.at(0).decodes);
  EXPECT_EQ(All<RunCompute>()[0].items[0].generated, 3);
}

TEST_F(StageDecodingTest, APageInTheMiddleOfAPromptIsRefused) {
  Make(0, 1);
  Plan plan = DecodedPlan(1);
  plan.items[0].new_page = 14;
  Send(PlanArrived{plan});
  EXPECT_TRUE(Has<EndEpoch>());
}

TEST_F(StageDecodingTest, ATokenOfAnEndedRequestIsNotTold) {
  Make(0, 1);
  Send(PlanArrived{DecodedPlan(1)});
  Send(PlanArrived{Plan{kEpoch, 2, {}, {}, {1}}});
  Computed(1, {SampledToken{42}});
  EXPECT_EQ(All<ReportPlanDone>().at(0).done.drawn.size(), 1u) << "its end comes behind the plan";
  EXPECT_TRUE(stage_->AtRest());
}

TEST_F(StageDecodingTest, RefusesDecodeStepsOutOfTurn) {
  const auto broken = [](void (*change)(PlanItem&)) {
    Plan plan = DecodedPlan(2);
    change(plan.items[0]);
    return plan;
  };
  for (const Plan& plan : {broken([](PlanItem& item) { item.token_begin = 21; }),
                           broken([](PlanItem& item) { item.token_begin = 19; }),
                           broken([](PlanItem& item) { item.token_count = 2; }),
                           broken([](PlanItem& item) { item.draws = false; }),
                           broken([](PlanItem& item) { item.final = true; })}) {
    Make(0, 1);
    Send(PlanArrived{DecodedPlan(1)});
    Computed(1, {SampledToken{42}});
    Send(PlanArrived{plan});
    ASSERT_TRUE(Has<EndEpoch>());
    EXPECT_TRUE(absl::IsFailedPrecondition(All<EndEpoch>()[0].status));
  }
}

TEST_F(StageDecodingTest, APromptThatIsDecodedDrawsAtItsEnd) {
  for (const bool draws : {false, true}) {
    Make(0, 1);
    Plan plan = DecodedPlan(1);
    plan.items[0].draws = draws;
    plan.items[0].final = draws;
    Send(PlanArrived{plan});
    EXPECT_TRUE(Has<EndEpoch>());
  }
}

TEST_F(StageDecodingTest, OnlyWhoDrawsIsToldToFeedWhatItDraws) {
  Plan step = DecodedPlan(2);
  step.items[0].token = kTokenAhead;
  Make(0, 1);
  Send(PlanArrived{DecodedPlan(1)});
  Send(PlanArrived{step});
  EXPECT_FALSE(Has<EndEpoch>());
  Make(0, 2);
  Send(PlanArrived{DecodedPlan(1)});
  Send(PlanArrived{step});
  EXPECT_TRUE(Has<EndEpoch>()) << "the other stage draws";
}

}  // namespace
}  // namespace baton::prefill
