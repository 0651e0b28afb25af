#include "services/prefill/core/stage.h"

#include <gtest/gtest.h>

#include "services/prefill/core/stage_fixture.h"

namespace baton::prefill {
namespace {

TEST_F(StageTest, TellsOfThePromptWithThePlan) {
  Make(0, 1);
  Send(PlanArrived{ChunkPlan(1)});
  Send(ComputeFinished{
      kEpoch, 1, absl::OkStatus(), 100, {}, {{{1, 1, {{7, -1, {}}}}, absl::OkStatus()}}});
  ASSERT_EQ(All<ReportPlanDone>().size(), 1u);
  ASSERT_EQ(All<ReportPlanDone>()[0].done.prompt_tokens.size(), 1u);
  EXPECT_EQ(All<ReportPlanDone>()[0].done.prompt_tokens[0].tokens[0].token, 7);
  EXPECT_TRUE(Has<SendKv>());
}

TEST_F(StageTest, APromptThatCannotBeToldFailsItsRequestAlone) {
  Make(0, 1);
  Send(PlanArrived{ChunkPlan(1)});
  Send(ComputeFinished{
      kEpoch, 1, absl::OkStatus(), 100, {}, {{{1, 1, {}}, absl::InternalError("NaN")}}});
  ASSERT_EQ(All<ReportPlanDone>().size(), 1u);
  EXPECT_TRUE(All<ReportPlanDone>()[0].done.prompt_tokens.empty());
  EXPECT_FALSE(Has<SendKv>());
  EXPECT_FALSE(Has<EndEpoch>());
  ASSERT_EQ(All<ReportRequestClosed>().size(), 1u);
  EXPECT_EQ(All<ReportRequestClosed>()[0].closed.status, absl::InternalError("NaN"));
}

TEST_F(StageTest, ComputesSendsAndCloses) {
  Make(0, 1);
  Send(PlanArrived{ChunkPlan(1)});
  ASSERT_EQ(All<RunCompute>().size(), 1u);
  EXPECT_EQ(All<RunCompute>()[0].items[0].pages, (std::vector<int>{10, 11}));
  Send(PlanArrived{ChunkPlan(2)});
  EXPECT_TRUE(actions_.empty());
  now_us_ = 2000;
  Computed(1);
  ASSERT_EQ(All<RunCompute>().size(), 1u);  // the next one at once
  EXPECT_EQ(All<RunCompute>()[0].items[0].pages, (std::vector<int>{10, 11, 12, 13}));
  ASSERT_EQ(All<SendKv>().size(), 1u);
  EXPECT_EQ(All<SendKv>()[0].pages, (std::vector<int>{10, 11}));
  EXPECT_EQ(All<SendKv>()[0].first_page, 0);
  EXPECT_FALSE(Has<SendActivations>());
  Send(PlanArrived{ChunkPlan(3)});
  Computed(2);
  EXPECT_EQ(All<SendKv>()[0].first_page, 2);
  SampledToken token;
  token.token = 42;
  Computed(3, {token});
  ASSERT_EQ(All<SendCommit>().size(), 1u);
  EXPECT_EQ(All<SendCommit>()[0].first_token->token, 42);
  now_us_ = 2500;
  Sent(4);  // the commit may be through before the data
  Sent(1);
  Sent(2);
  EXPECT_FALSE(Has<ReportRequestClosed>());
  Sent(3);
  ASSERT_EQ(All<ReportRequestClosed>().size(), 1u);
  const RequestClosed closed = All<ReportRequestClosed>()[0].closed;
  EXPECT_TRUE(closed.status.ok());
  EXPECT_EQ(closed.kv_bytes, 4000);
  EXPECT_EQ(closed.kv_transfer_us, 28);
  EXPECT_EQ(closed.kv_exposed_us, 500);
  EXPECT_TRUE(stage_->AtRest());
}

TEST_F(StageTest, WaitsForItsInput) {
  Make(1, 2);
  Send(PlanArrived{ChunkPlan(1)});
  EXPECT_FALSE(Has<RunCompute>());
  EXPECT_EQ(stage_->doing(), StageDoing::kInput);
  now_us_ = 1600;
  Send(ActivationsArrived{kEpoch, 1});
  EXPECT_TRUE(Has<RunCompute>());
  Computed(1);
  EXPECT_EQ(All<ReturnCredit>()[0].number, 1u);
  EXPECT_EQ(All<ReportPlanDone>()[0].done.wait_us, 600);
  EXPECT_EQ(stage_->doing(), StageDoing::kBubble);
}

TEST_F(StageTest, ActivationsMayComeBeforeTheirPlan) {
  Make(1, 2);
  Send(ActivationsArrived{kEpoch, 2});
  EXPECT_FALSE(stage_->AtRest());
  Send(ActivationsArrived{kEpoch, 1});
  EXPECT_FALSE(Has<EndEpoch>());
  Send(PlanArrived{ChunkPlan(1)});
  EXPECT_TRUE(Has<RunCompute>());
}

TEST_F(StageTest, ActivationsBeyondTheCreditEndTheEpoch) {
  Make(1, 2);
  Send(ActivationsArrived{kEpoch, 1});
  Send(PlanArrived{ChunkPlan(1)});  // being computed: its buffer is in use
  Send(ActivationsArrived{kEpoch, 2});
  EXPECT_FALSE(Has<EndEpoch>());
  Send(ActivationsArrived{kEpoch, 3});
  EXPECT_TRUE(Has<EndEpoch>());
  EXPECT_FALSE(stage_->Quiet());
  Computed(1);
  EXPECT_TRUE(actions_.empty());
  EXPECT_TRUE(stage_->AtRest());
}

TEST_F(StageTest, HoldsOutputsWithoutCredit) {
  Make(0, 2);
  for (uint64_t number = 1; number <= 3; ++number) Send(PlanArrived{ChunkPlan(number)});
  Computed(1);
  EXPECT_EQ(All<SendActivations>()[0].token_count, 32);
  Computed(2);
  EXPECT_TRUE(Has<SendActivations>());
  EXPECT_FALSE(Has<RunCompute>());  // both output buffers are in use
  EXPECT_EQ(stage_->doing(), StageDoing::kTransfer);
  Send(ActivationsSent{kEpoch, 2, absl::OkStatus()});
  EXPECT_FALSE(Has<RunCompute>());  // plan 3 needs plan 1's
  Send(ActivationsSent{kEpoch, 1, absl::OkStatus()});
  EXPECT_TRUE(Has<RunCompute>());
  Computed(3);
  EXPECT_FALSE(Has<SendActivations>());  // two credits are out
  Send(CreditReturned{kEpoch, 2});       // buffer 1 is still plan 1's
  EXPECT_FALSE(Has<SendActivations>());
  Send(CreditReturned{kEpoch, 1});
  ASSERT_TRUE(Has<SendActivations>());
  EXPECT_EQ(All<SendActivations>()[0].number, 3u);
}

TEST_F(StageTest, ACreditThatIsLostIsMadeGoodByWhatTheNextStageHasDone) {
  Make(0, 2);
  for (uint64_t number = 1; number <= 3; ++number) Send(PlanArrived{ChunkPlan(number)});
  for (uint64_t number = 1; number <= 2; ++number) {
    Computed(number);
    Send(ActivationsSent{kEpoch, number, absl::OkStatus()});
  }
  Computed(3);
  Send(NextStageDone{kEpoch - 1, 9});  // From an older epoch.
  Send(NextStageDone{kEpoch, 0});
  EXPECT_FALSE(Has<SendActivations>());
  Send(NextStageDone{kEpoch, 1});
  ASSERT_TRUE(Has<SendActivations>());
  EXPECT_EQ(All<SendActivations>()[0].number, 3u);
  Send(CreditReturned{kEpoch, 1});
  EXPECT_TRUE(actions_.empty()) << "it was late, not lost";
  Send(CreditReturned{kEpoch, 2});
  EXPECT_FALSE(Has<EndEpoch>());
}

TEST_F(StageTest, GapsDuplicatesAndNewerEpochsEndTheEpoch) {
  Make(0, 1);
  Send(PlanArrived{ChunkPlan(2)});
  EXPECT_EQ(All<EndEpoch>()[0].status.code(), absl::StatusCode::kFailedPrecondition);

  Make(0, 1);
  Send(PlanArrived{ChunkPlan(1)});
  Send(PlanArrived{ChunkPlan(1)});
  EXPECT_TRUE(Has<EndEpoch>());

  Make(0, 1);
  Plan newer = ChunkPlan(1);
  newer.epoch = kEpoch + 1;
  Send(PlanArrived{newer});
  EXPECT_TRUE(Has<EndEpoch>());

  Make(0, 1);
  Plan older = ChunkPlan(1);
  older.epoch = kEpoch - 1;
  Send(PlanArrived{older});
  EXPECT_TRUE(actions_.empty());
}

TEST_F(StageTest, MalformedPlansEndTheEpoch) {
  const auto refused = [this](const Plan& plan) {
    Make(0, 1);
    Send(PlanArrived{plan});
    return Has<EndEpoch>();
  };
  Plan plan = ChunkPlan(1);
  plan.opens.clear();
  EXPECT_TRUE(refused(plan)) << "an item of an unknown attempt";
  plan = ChunkPlan(1);
  plan.items[0].token_begin = 16;
  EXPECT_TRUE(refused(plan)) << "a chunk that is not the next";
  plan = ChunkPlan(1);
  plan.items[0].token_count = 0;
  EXPECT_TRUE(refused(plan)) << "an empty chunk";
  plan = ChunkPlan(1);
  plan.opens[0].pages.resize(1);
  EXPECT_TRUE(refused(plan)) << "too few pages";
  plan = ChunkPlan(1);
  plan.items[0].final = true;
  EXPECT_TRUE(refused(plan)) << "final before the end";
  plan = ChunkPlan(1);
  plan.items.push_back(plan.items[0]);
  EXPECT_TRUE(refused(plan)) << "two items of one attempt";
  plan = ChunkPlan(1);
  plan.items.clear();
  EXPECT_TRUE(refused(plan)) << "opened without a chunk";
  EXPECT_FALSE(refused(ChunkPlan(1)));
}

TEST_F(StageTest, AnAbortCancelsWhatIsBeingSentAndIsTheReasonOfItsEnd) {
  Make(0, 1);
  Send(PlanArrived{ChunkPlan(1)});
  Computed(1);
  const std::vector<SendKv> sends = All<SendKv>();
  ASSERT_EQ(sends.size(), 1u);
  Plan abort{kEpoch, 2, {}, {}, {1}};
  Send(PlanArrived{abort});
  ASSERT_EQ(All<CancelKv>().size(), 1u);
  EXPECT_EQ(All<CancelKv>()[0].attempt_id, 1u);
  EXPECT_FALSE(Has<ReportRequestClosed>()) << "its pages are being read";
  Sent(sends[0].send_id, absl::UnavailableError("half of it was on its way"));
  ASSERT_EQ(All<ReportRequestClosed>().size(), 1u);
  EXPECT_EQ(All<ReportRequestClosed>()[0].closed.status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(stage_->AtRest());
}

TEST_F(StageTest, AnAbortTakesEffectInItsTurn) {
  Make(0, 1);
  Send(PlanArrived{ChunkPlan(1)});
  Send(PlanArrived{ChunkPlan(2)});
  Send(PlanArrived{Plan{kEpoch, 3, {}, {}, {1}}});
  EXPECT_TRUE(actions_.empty());
  Computed(1);
  EXPECT_TRUE(Has<SendKv>());
  Sent(1);
  Computed(2);
  EXPECT_EQ(All<ReportPlanDone>().size(), 2u);  // plan 3 has nothing to compute
  EXPECT_FALSE(Has<ReportRequestClosed>());
  Sent(2);
  ASSERT_TRUE(Has<ReportRequestClosed>());
  EXPECT_EQ(All<ReportRequestClosed>()[0].closed.status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(stage_->AtRest());
}

TEST_F(StageTest, AFailedSendClosesTheRequestButItsRowsAreComputed) {
  Make(0, 1);
  Send(PlanArrived{ChunkPlan(1)});
  Send(PlanArrived{ChunkPlan(2)});
  Computed(1);
  Sent(1, absl::UnavailableError("decode is gone"));
  ASSERT_TRUE(Has<ReportRequestClosed>());
  EXPECT_EQ(All<ReportRequestClosed>()[0].closed.status, absl::UnavailableError("decode is gone"));
  Send(PlanArrived{ChunkPlan(3)});
  Computed(2);
  EXPECT_FALSE(Has<SendKv>());
  EXPECT_TRUE(Has<RunCompute>());
  Computed(3, {SampledToken{}});
  EXPECT_FALSE(Has<SendCommit>());
  EXPECT_FALSE(Has<ReportRequestClosed>());
  EXPECT_TRUE(stage_->AtRest());
}

TEST_F(StageTest, ATokenThatCannotBeSampledFailsItsRequestAlone) {
  Make(0, 1);
  Plan plan{kEpoch, 1, {}, {{1, 0, 10, true}, {2, 0, 10, true}}, {}};
  plan.opens = {{1, TicketFor(10), {3}}, {2, TicketFor(10), {4}}};
  Send(PlanArrived{plan});
  Computed(1, {absl::InternalError("logits are not finite"), SampledToken{}});
  ASSERT_EQ(All<SendCommit>().size(), 1u);
  EXPECT_EQ(All<SendCommit>()[0].attempt_id, 2u);
  ASSERT_TRUE(Has<ReportRequestClosed>());
  EXPECT_EQ(All<ReportRequestClosed>()[0].closed.attempt_id, 1u);
}

TEST_F(StageTest, AComputeErrorEndsTheEpoch) {
  Make(0, 1);
  Send(PlanArrived{ChunkPlan(1)});
  Send(ComputeFinished{kEpoch, 1, absl::InternalError("out of memory"), 0, {}});
  EXPECT_TRUE(Has<EndEpoch>());
  EXPECT_TRUE(stage_->AtRest());
}

TEST_F(StageTest, AnEndedEpochIsQuietOnceItsWorkIsOver) {
  Make(0, 2);
  Send(PlanArrived{ChunkPlan(1)});
  Send(PlanArrived{ChunkPlan(2)});
  Computed(1);
  Send(ActivationsSent{kEpoch, 1, absl::OkStatus()});
  Send(EpochEnded{});
  EXPECT_FALSE(stage_->Quiet());
  Computed(2);
  EXPECT_FALSE(stage_->Quiet());
  Sent(1);
  EXPECT_TRUE(actions_.empty());
  EXPECT_TRUE(stage_->AtRest());
  Send(EpochBegan{kEpoch + 1});
  Send(CreditReturned{kEpoch, 1});
  EXPECT_TRUE(actions_.empty());
  Plan plan = ChunkPlan(1);
  plan.epoch = kEpoch + 1;
  Send(PlanArrived{plan});
  EXPECT_TRUE(Has<RunCompute>());
}

TEST_F(StageTest, HoldsABoundedNumberOfPlans) {
  Make(1, 2);
  Plan plan{kEpoch, 1, {{1, TicketFor(96), {0, 1, 2, 3, 4, 5}}}, {}, {}};
  for (uint64_t number = 1; number <= 5; ++number) {
    plan.number = number;
    plan.items = {{1, static_cast<int>(number - 1) * 16, 16, false}};
    Send(PlanArrived{plan});
    EXPECT_EQ(Has<EndEpoch>(), number == 5) << number;
    plan.opens.clear();
  }
}

// The last stage of two as rank 1 of two: it computes the same and draws nothing.
TEST_F(StageTest, ARankBesideTheFirstCommitsWithoutAToken) {
  MakeRank({1, 2}, /*kv_heads=*/2);
  for (const uint64_t number : {1, 2, 3}) {
    Send(PlanArrived{ChunkPlan(number)});
    Send(ActivationsArrived{kEpoch, number});
    Computed(number);
    EXPECT_EQ(All<SendKv>().size(), 1u) << number;
  }
  ASSERT_EQ(All<SendCommit>().size(), 1u);
  EXPECT_FALSE(All<SendCommit>()[0].first_token.has_value());
}

// What is written is for the decode service to say: two ranks of it want both copies of the head.
TEST_F(StageTest, ARankWritesWhereItsCopyIsWanted) {
  MakeRank({1, 2}, /*kv_heads=*/1);
  Plan plan = ChunkPlan(1);
  plan.opens[0].ticket->followers = {{"decode-0-1", 2}};
  Send(PlanArrived{plan});
  Send(ActivationsArrived{kEpoch, 1});
  Computed(1);
  ASSERT_EQ(All<SendKv>().size(), 1u);
  EXPECT_EQ(All<SendKv>()[0].ticket, plan.opens[0].ticket);
}

TEST_F(StageTest, ARankWhoseHeadsAnotherOneWritesClosesWithItsLastChunk) {
  MakeRank({1, 2}, /*kv_heads=*/1);
  for (const uint64_t number : {1, 2, 3}) {
    Send(PlanArrived{ChunkPlan(number)});
    Send(ActivationsArrived{kEpoch, number});
    Computed(number);
    EXPECT_FALSE(Has<SendKv>());
    EXPECT_FALSE(Has<SendCommit>());
    EXPECT_EQ(Has<ReportRequestClosed>(), number == 3);
  }
  EXPECT_TRUE(All<ReportRequestClosed>()[0].closed.status.ok());
  EXPECT_TRUE(stage_->AtRest());
}

}  // namespace
}  // namespace baton::prefill
