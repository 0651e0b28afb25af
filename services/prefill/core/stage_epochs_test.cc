// What is of an older epoch, and what a stage may not be told: nothing of it counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "services/prefill/core/stage_fixture.h"

namespace baton::prefill {
namespace {

class StageEpochsTest : public StageTest {
 protected:
  static constexpr uint64_t kNext = kEpoch + 1;

  void NextEpoch() {
    Send(EpochEnded{});
    Send(EpochBegan{kNext});
  }
  static Plan OfNext(uint64_t number) {
    Plan plan = ChunkPlan(number);
    plan.epoch = kNext;
    return plan;
  }
  // Plans of one page each, of a prompt of six.
  static Plan PagePlan(uint64_t number) {
    const int begin = static_cast<int>(number - 1) * 16;
    Plan plan{kEpoch, number, {}, {{1, begin, 16, begin == 80}}, {}};
    if (number == 1) plan.opens.push_back({1, TicketFor(96), {10, 11, 12, 13, 14, 15}});
    return plan;
  }
  bool Refused(const Plan& plan) {
    Make(0, 1);
    Send(PlanArrived{plan});
    return Has<EndEpoch>();
  }
};

TEST_F(StageEpochsTest, AnOlderEpochsMessagesAreNothing) {
  Make(1, 2);
  Send(EpochEnded{});
  Send(ActivationsArrived{kEpoch, 1});
  Send(PlanArrived{ChunkPlan(1)});
  EXPECT_TRUE(actions_.empty()) << "between epochs";
  Send(EpochBegan{kNext});
  Send(ActivationsArrived{kEpoch, 1});
  Send(PlanArrived{ChunkPlan(1)});
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(stage_->held_pages(), 0);
  Send(PlanArrived{OfNext(1)});
  EXPECT_FALSE(Has<RunCompute>()) << "its input has not come";
  Send(ActivationsArrived{kNext, 1});
  EXPECT_TRUE(Has<RunCompute>());
}

TEST_F(StageEpochsTest, TheNextEpochBeginsWithNothing) {
  Make(1, 2);
  Send(ActivationsArrived{kEpoch, 2});  // Plan 1's is still to come.
  Send(PlanArrived{ChunkPlan(1)});
  EXPECT_EQ(stage_->held_pages(), 6);
  EXPECT_FALSE(stage_->AtRest());
  NextEpoch();
  EXPECT_TRUE(stage_->AtRest());
  EXPECT_EQ(stage_->held_pages(), 0);
  EXPECT_EQ(stage_->doing(), StageDoing::kNoRequest);
  Send(ActivationsArrived{kNext, 1});
  EXPECT_FALSE(Has<EndEpoch>());
  Send(PlanArrived{OfNext(1)});
  ASSERT_TRUE(Has<RunCompute>());
  EXPECT_EQ(All<RunCompute>()[0].epoch, kNext);
  Send(ComputeFinished{kNext, 1, absl::OkStatus(), 100, {}, {}});
  Send(PlanArrived{OfNext(2)});
  EXPECT_FALSE(Has<RunCompute>()) << "the old epoch's input is not this one's";
}

// What has been computed and waits for a credit, too.
TEST_F(StageEpochsTest, AnEpochEndsWhereTheNextBegins) {
  Make(0, 2);
  for (uint64_t number = 1; number <= 3; ++number) Send(PlanArrived{ChunkPlan(number)});
  for (uint64_t number = 1; number <= 3; ++number) {
    Computed(number);
    if (number <= 2) Send(ActivationsSent{kEpoch, number, absl::OkStatus()});
  }
  for (uint64_t send_id = 1; send_id <= 4; ++send_id) Sent(send_id);
  EXPECT_TRUE(stage_->Quiet());
  EXPECT_FALSE(stage_->AtRest());
  Send(EpochBegan{kNext});
  EXPECT_TRUE(stage_->AtRest());
  Send(PlanArrived{OfNext(1)});
  EXPECT_TRUE(Has<RunCompute>());
}

TEST_F(StageEpochsTest, PlansAreCountedWhateverIsInThem) {
  const auto nothing = [](uint64_t number) { return Plan{kEpoch, number, {}, {}, {77}}; };
  EXPECT_TRUE(Refused(nothing(2))) << "too early";
  EXPECT_FALSE(Refused(nothing(1)));
  Send(PlanArrived{nothing(1)});
  EXPECT_TRUE(Has<EndEpoch>()) << "twice";

  Plan plan = ChunkPlan(1);
  plan.opens.clear();
  ASSERT_TRUE(Refused(plan));
  EXPECT_THAT(std::string(All<EndEpoch>()[0].status.message()), testing::HasSubstr("never opened"));
}

TEST_F(StageEpochsTest, ActivationsMayBeginAnewInEveryEpoch) {
  Make(1, 2);
  Send(ActivationsArrived{kEpoch, 1});
  Send(PlanArrived{ChunkPlan(1)});
  Computed(1);
  for (const SendKv& send : All<SendKv>()) Sent(send.send_id);
  NextEpoch();
  Send(ActivationsArrived{kNext, 1});
  EXPECT_FALSE(Has<EndEpoch>()) << "plan 1 is another one now";
}

TEST_F(StageEpochsTest, CreditsAreThoseOfTheirEpoch) {
  Make(0, 2);
  Send(PlanArrived{ChunkPlan(1)});
  Computed(1);
  Send(ActivationsSent{kEpoch, 1, absl::OkStatus()});
  const uint64_t send_id = All<SendKv>()[0].send_id;
  Sent(send_id);
  Send(NextStageDone{kEpoch, 1});
  Send(PlanArrived{ChunkPlan(2)});
  Computed(2);
  Send(ActivationsSent{kEpoch, 2, absl::OkStatus()});
  const uint64_t second = All<SendKv>()[0].send_id;
  Sent(second);
  NextEpoch();
  Send(CreditReturned{kEpoch, 2});
  EXPECT_TRUE(actions_.empty());
  Send(CreditReturned{kNext, 2});
  EXPECT_TRUE(Has<EndEpoch>()) << "nothing is out in this epoch";
}

TEST_F(StageEpochsTest, WhatTheNextStageHadDoneIsOfItsEpoch) {
  Make(0, 2);
  Send(NextStageDone{kEpoch, 9});
  NextEpoch();
  for (uint64_t number = 1; number <= 3; ++number) {
    Send(PlanArrived{OfNext(number)});
  }
  for (uint64_t number = 1; number <= 2; ++number) {
    Send(ComputeFinished{kNext, number, absl::OkStatus(), 100, {}, {}});
    Send(ActivationsSent{kNext, number, absl::OkStatus()});
  }
  Send(ComputeFinished{kNext, 3, absl::OkStatus(), 100, {}, {}});
  EXPECT_FALSE(Has<SendActivations>());
  Send(CreditReturned{kNext, 1});
  EXPECT_TRUE(Has<SendActivations>());
}

TEST_F(StageEpochsTest, ActivationsThatNobodyAskedForEndTheEpoch) {
  Make(1, 2);
  Send(ActivationsArrived{kEpoch, 1});
  Send(ActivationsArrived{kEpoch, 1});
  EXPECT_TRUE(Has<EndEpoch>()) << "twice";

  Make(1, 2);
  Send(ActivationsArrived{kEpoch, 1});
  Send(ActivationsArrived{kEpoch, 3});
  EXPECT_TRUE(Has<EndEpoch>()) << "into the buffer of one that waits";

  Make(1, 2);
  Send(ActivationsArrived{kEpoch, 1});
  Send(PlanArrived{ChunkPlan(1)});
  Computed(1);
  Send(ActivationsArrived{kEpoch, 1});
  EXPECT_TRUE(Has<EndEpoch>()) << "of a plan that is done";
}

TEST_F(StageEpochsTest, ABrokenTransferOfActivationsEndsTheEpoch) {
  Make(0, 2);
  Send(PlanArrived{ChunkPlan(1)});
  Computed(1);
  Send(ActivationsSent{kEpoch, 1, absl::UnavailableError("endpoint reset")});
  ASSERT_TRUE(Has<EndEpoch>());
  EXPECT_TRUE(absl::IsUnavailable(All<EndEpoch>()[0].status));
}

TEST_F(StageEpochsTest, TheLastStageOwesATokenForEveryPromptThatEnds) {
  for (const size_t tokens : {0u, 2u}) {
    Make(0, 1);
    Plan plan{kEpoch, 1, {{1, TicketFor(10), {3}}}, {{1, 0, 10, true}}, {}};
    Send(PlanArrived{plan});
    Computed(1, std::vector<absl::StatusOr<SampledToken>>(tokens, SampledToken{}));
    EXPECT_TRUE(Has<EndEpoch>()) << tokens;
  }
}

TEST_F(StageEpochsTest, PlansThatDoNotFitTheirPromptsEndTheEpoch) {
  Plan plan{kEpoch, 1, {{1, TicketFor(96), {1, 2, 3, 4, 5, 6, 7}}}, {{1, 0, 112, false}}, {}};
  EXPECT_TRUE(Refused(plan)) << "beyond the prompt";
  plan.items = {{1, 0, 96, false}};
  EXPECT_TRUE(Refused(plan)) << "an end that is not final";
  plan.items = {{1, 0, 32, false}};
  plan.aborts = {1};
  EXPECT_TRUE(Refused(plan)) << "computed and aborted";
  plan.aborts = {};
  plan.opens.push_back(plan.opens[0]);
  EXPECT_TRUE(Refused(plan)) << "opened twice";
  plan.opens.pop_back();
  EXPECT_FALSE(Refused(plan));
  plan.number = 2;
  plan.items = {{1, 32, 32, false}};
  Send(PlanArrived{plan});
  EXPECT_TRUE(Has<EndEpoch>()) << "opened again";

  plan = ChunkPlan(1);
  plan.items = {{1, 0, 24, false}};
  EXPECT_FALSE(Refused(plan));
  Send(PlanArrived{Plan{kEpoch, 2, {}, {{1, 24, 32, false}}, {}}});
  EXPECT_TRUE(Has<EndEpoch>()) << "a chunk that begins within a page";

  EXPECT_FALSE(Refused(ChunkPlan(1)));
  Send(PlanArrived{Plan{kEpoch, 2, {}, {{1, 32, 80, false}}, {}}});
  EXPECT_TRUE(Has<EndEpoch>()) << "a later chunk beyond the prompt";
}

// ---- Pages ----

// A prompt of exactly its pages, and one that ends within a page, each with a page to spare.
TEST_F(StageEpochsTest, ChunksReadAndSendTheirOwnPages) {
  for (const int tokens : {32, 17}) {
    Make(0, 1);
    Plan plan{kEpoch, 1, {{1, TicketFor(tokens), {7, 8, 9}}}, {{1, 0, tokens, true}}, {}};
    Send(PlanArrived{plan});
    EXPECT_EQ(All<RunCompute>()[0].items[0].pages, (std::vector<int>{7, 8})) << tokens;
    Computed(1, {SampledToken{}});
    EXPECT_EQ(All<SendKv>()[0].pages, (std::vector<int>{7, 8})) << tokens;
  }
  Make(0, 1);
  Plan plan = ChunkPlan(1);
  plan.opens = {{1, TicketFor(70), {10, 11, 12, 13, 14}}};
  Send(PlanArrived{plan});
  Computed(1);
  Send(PlanArrived{Plan{kEpoch, 2, {}, {{1, 32, 32, false}}, {}}});
  Computed(2);
  EXPECT_EQ(All<SendKv>()[0].first_page, 2);
  EXPECT_EQ(All<SendKv>()[0].pages, (std::vector<int>{12, 13}));
  Send(PlanArrived{Plan{kEpoch, 3, {}, {{1, 64, 6, true}}, {}}});
  EXPECT_EQ(All<RunCompute>()[0].items[0].pages, (std::vector<int>{10, 11, 12, 13, 14}));
  Computed(3, {SampledToken{}});
  EXPECT_EQ(All<SendKv>()[0].first_page, 4);
  EXPECT_EQ(All<SendKv>()[0].pages, std::vector<int>{14});
  EXPECT_EQ(stage_->held_pages(), 5) << "until they are sent";
}

// ---- Order and times ----

TEST_F(StageEpochsTest, TheNextPlanRunsBeforeTheLastIsHandedOn) {
  Make(1, 3);
  Send(ActivationsArrived{kEpoch, 1});
  Send(PlanArrived{ChunkPlan(1)});
  Send(ActivationsArrived{kEpoch, 2});
  now_us_ = 1100;
  Send(PlanArrived{ChunkPlan(2)});
  EXPECT_EQ(stage_->doing(), StageDoing::kBusy);
  now_us_ = 2000;
  Computed(1);
  ASSERT_EQ(actions_.size(), 4u);
  EXPECT_TRUE(std::holds_alternative<RunCompute>(actions_[0]));
  EXPECT_TRUE(std::holds_alternative<SendActivations>(actions_[1]));
  EXPECT_TRUE(std::holds_alternative<ReturnCredit>(actions_[2]));
  EXPECT_TRUE(std::holds_alternative<ReportPlanDone>(actions_[3]));
  EXPECT_EQ(All<RunCompute>()[0].wait_us, 0) << "it waited for nothing but its turn";
  EXPECT_EQ(All<ReportPlanDone>()[0].done.compute_us, 100);
}

TEST_F(StageEpochsTest, StageZeroReturnsNoCreditAndOnlyTheLastSendsAToken) {
  Make(0, 2);
  Plan plan{kEpoch, 1, {{1, TicketFor(10), {3}}}, {{1, 0, 10, true}}, {}};
  Send(PlanArrived{plan});
  Computed(1);
  EXPECT_FALSE(Has<ReturnCredit>());
  Send(ActivationsSent{kEpoch, 1, absl::OkStatus()});
  ASSERT_TRUE(Has<SendCommit>());
  EXPECT_FALSE(All<SendCommit>()[0].first_token.has_value());
}

TEST_F(StageEpochsTest, IsIdleForACreditWhenItsOutputsWaitForOne) {
  Make(0, 2);
  for (uint64_t number = 1; number <= 4; ++number) {
    Send(PlanArrived{PagePlan(number)});
    Computed(number);
    if (number <= 2) Send(ActivationsSent{kEpoch, number, absl::OkStatus()});
  }
  Send(PlanArrived{PagePlan(5)});
  EXPECT_FALSE(Has<RunCompute>());
  EXPECT_EQ(stage_->doing(), StageDoing::kCredit);
}

// ---- Ends ----

TEST_F(StageEpochsTest, AnAbortOfWhatIsSentCancelsNothingAndClosesAtOnce) {
  Make(0, 1);
  Send(PlanArrived{ChunkPlan(1)});
  Computed(1);
  Sent(1);
  Send(PlanArrived{Plan{kEpoch, 2, {}, {}, {1, 77}}});
  EXPECT_FALSE(Has<CancelKv>());
  ASSERT_EQ(All<ReportRequestClosed>().size(), 1u);
  EXPECT_EQ(All<ReportPlanDone>()[0].done.number, 2u);
}

TEST_F(StageEpochsTest, AnAbortedPromptIsNeitherToldNorSent) {
  Make(0, 1);
  Plan plan{kEpoch, 1, {{1, TicketFor(20), {3, 4}}}, {{1, 0, 16, false}}, {}};
  Send(PlanArrived{plan});
  Send(PlanArrived{Plan{kEpoch, 2, {}, {{1, 16, 4, true}}, {}}});
  Computed(1);
  Sent(1, absl::UnavailableError("decode is gone"));
  Send(ComputeFinished{kEpoch,
                       2,
                       absl::OkStatus(),
                       100,
                       {SampledToken{}},
                       {{{1, 1, {{7, -1, {}}}}, absl::OkStatus()}}});
  EXPECT_TRUE(All<ReportPlanDone>()[0].done.prompt_tokens.empty());
  EXPECT_FALSE(Has<SendKv>() || Has<SendCommit>());
}

TEST_F(StageEpochsTest, TheFirstFailureIsTheReason) {
  Make(0, 1);
  Send(PlanArrived{ChunkPlan(1)});
  Send(PlanArrived{ChunkPlan(2)});
  Computed(1);
  Computed(2);
  Sent(1, absl::UnavailableError("first"));
  EXPECT_FALSE(Has<ReportRequestClosed>()) << "another send reads its pages";
  Sent(2, absl::InternalError("second"));
  EXPECT_EQ(All<ReportRequestClosed>()[0].closed.status, absl::UnavailableError("first"));
}

TEST_F(StageEpochsTest, ATokenThatCannotBeDrawnIsNoReasonForWhatHasFailedBefore) {
  Make(0, 1);
  for (uint64_t number = 1; number <= 3; ++number) Send(PlanArrived{ChunkPlan(number)});
  Computed(1);
  Computed(2);
  Sent(1, absl::UnavailableError("first"));
  Computed(3, {absl::InternalError("no logit is finite")});
  Sent(2);
  EXPECT_EQ(All<ReportRequestClosed>()[0].closed.status, absl::UnavailableError("first"));
}

TEST_F(StageEpochsTest, IsNotQuietWhileAnythingIsBeingSent) {
  Make(0, 2);
  Send(PlanArrived{ChunkPlan(1)});
  EXPECT_FALSE(stage_->Quiet());
  Computed(1);
  Send(EpochEnded{});
  EXPECT_FALSE(stage_->Quiet()) << "activations read a buffer";
  Send(ActivationsSent{kEpoch, 1, absl::OkStatus()});
  EXPECT_TRUE(stage_->Quiet());

  Make(0, 1);
  Send(PlanArrived{ChunkPlan(1)});
  Computed(1);
  Send(EpochEnded{});
  EXPECT_FALSE(stage_->Quiet()) << "KV is read";
  Sent(1);
  EXPECT_TRUE(stage_->Quiet());
}

}  // namespace
}  // namespace baton::prefill
