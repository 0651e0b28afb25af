// The edges of the planner's limits, and what it makes of messages that come twice, late, or from a
// stage that should not send them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "services/prefill/core/planner_fixture.h"

namespace baton::prefill {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PlannerBoundsTest : public PlannerTest {
 protected:
  static PlannerLimits Bounds(int max_queued_requests) {
    PlannerLimits limits = Limits();
    limits.max_open_requests = 2;
    limits.max_queued_requests = max_queued_requests;
    return limits;
  }
  explicit PlannerBoundsTest(int max_queued_requests = 2)
      : PlannerTest(Bounds(max_queued_requests)) {}

  void Up(int pages = 64) { PlannerTest::Up(2, pages); }
  void Done(int stage, uint64_t number) {
    Send(StagePlanDone{stage, kEpoch, {number, 10, int64_t{3} * stage}});
  }
  void Closed(int stage, uint64_t attempt) {
    Send(StageRequestClosed{
        stage, kEpoch, {attempt, absl::OkStatus(), 100, 50 - 10 * stage, 3 + stage}});
  }
};

TEST_F(PlannerBoundsTest, TheSmallestAndTheLargestPromptAreTaken) {
  Up(63);
  Start(1, 1);
  Start(2, 1000);
  EXPECT_TRUE(finished_.empty());
  EXPECT_EQ(plans_.at(0).opens.at(0).pages.size(), 1u);
}

TEST_F(PlannerBoundsTest, APromptThatFillsAllPagesRuns) {
  Up(10);
  Start(1, 160);
  EXPECT_TRUE(finished_.empty());
  EXPECT_EQ(plans_.at(0).opens.at(0).pages.size(), 10u);
  EXPECT_EQ(planner_->load().free_pages, 0);
  Start(2, 16);
  EXPECT_EQ(planner_->load().queued, 1);
  EXPECT_EQ(planner_->load().queued_tokens, 16 + 160 - 128);
}

TEST_F(PlannerBoundsTest, APromptOfExactlyItsPagesHasNoOther) {
  Up();
  Start(1, 64);
  EXPECT_EQ(plans_.at(0).opens.at(0).pages.size(), 4u);
  EXPECT_TRUE(plans_.at(0).items.at(0).final);
  EXPECT_EQ(plans_.size(), 1u);
}

TEST_F(PlannerBoundsTest, TicketsThatAreOthersAreRefused) {
  Up();
  Ticket ticket = TicketFor(32);
  ticket.prompt_pages = 3;
  Send(StartRequested{1, 32, ticket, kNeverUs});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(finished_[0].status));
}

TEST_F(PlannerBoundsTest, OpenAndQueuedRequestsAreBounded) {
  Up();
  for (uint64_t attempt = 1; attempt <= 5; ++attempt) {
    Start(attempt, 16);
    if (attempt <= 2) Done(0, attempt);  // So that plans go on.
  }
  EXPECT_EQ(planner_->load().open, 2);
  EXPECT_EQ(planner_->load().queued, 2);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].attempt_id, 5u);
}

class NoQueueTest : public PlannerBoundsTest {
 protected:
  NoQueueTest() : PlannerBoundsTest(0) {}
};

TEST_F(NoQueueTest, WhatCanBeginAtOnceIsTaken) {
  Up(4);
  Start(1, 64);
  EXPECT_TRUE(finished_.empty());
  Start(2, 16);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(finished_[0].status)) << "no page is free";
}

TEST_F(PlannerBoundsTest, APlanOrACloseThatIsSaidTwiceCountsOnce) {
  Up();
  Start(1, 32);
  now_us_ = 5000;
  Done(0, 1);
  now_us_ = 6000;
  Done(0, 1);
  Done(1, 1);
  now_us_ = 7000;
  Done(1, 1);
  EXPECT_EQ(planner_->plans_done(0), 1u);
  EXPECT_EQ(planner_->plans_done(2), 0u) << "there is no such stage";
  Closed(0, 1);
  Closed(0, 1);
  EXPECT_TRUE(finished_.empty());
  Closed(1, 1);
  ASSERT_EQ(finished_.size(), 1u);
  const PrefillOutcome& outcome = finished_[0].outcome;
  EXPECT_EQ(outcome.compute_us, 5000) << "until the last stage was done with it";
  EXPECT_EQ(outcome.kv_bytes, 200);
  EXPECT_EQ(outcome.kv_transfer_us, 50) << "the slowest stage's";
  EXPECT_EQ(outcome.kv_exposed_us, 4);
  EXPECT_EQ(outcome.chunks.at(0).stages.at(1).wait_us, 3);
  Closed(1, 1);
  EXPECT_EQ(finished_.size(), 1u);
}

TEST_F(PlannerBoundsTest, AnOlderEpochsMessagesAreNothing) {
  Up();
  Start(1, 64);
  Send(ChainDown{absl::UnavailableError("gone")});
  Done(0, 1);
  Closed(0, 1);
  EXPECT_TRUE(actions_.empty()) << "between epochs";
  Send(ChainDown{absl::UnavailableError("gone again")});
  Send(ChainUp{kEpoch + 1, 2, 64});
  Start(1, 64);
  Closed(0, 1);
  Closed(1, 1);
  Send(StageRequestClosed{0, kEpoch, {1, absl::UnavailableError("decode is gone")}});
  Done(0, 1);
  Done(1, 1);
  EXPECT_EQ(planner_->plans_done(0), 0u);
  EXPECT_EQ(finished_.size(), 1u);
  EXPECT_EQ(planner_->load().owned_pages, 4);
  for (int stage = 0; stage < 2; ++stage) {
    Send(StagePlanDone{stage, kEpoch + 1, {1, 10, 0}});
    Send(StageRequestClosed{stage, kEpoch + 1, {1, absl::OkStatus(), 100, 5, 3}});
  }
  EXPECT_EQ(finished_.size(), 2u);
  EXPECT_TRUE(planner_->AtRest());
}

TEST_F(PlannerBoundsTest, TheNextEpochBeginsWithNothingOfTheLast) {
  Up();
  Start(1, 640);
  Start(2, 64);
  Start(3, 64);
  Send(AbortRequested{1, absl::CancelledError("client")});  // In the next plan, which never comes.
  EXPECT_NE(planner_->pool(), nullptr);
  Send(ChainDown{absl::UnavailableError("stage 1 is gone")});
  EXPECT_EQ(planner_->pool(), nullptr);
  Send(ChainDown{absl::UnavailableError("gone again")});
  Start(4, 16);
  EXPECT_THAT(std::string(finished_.back().status.message()), HasSubstr("stage 1 is gone"));
  Send(ChainUp{kEpoch + 1, 2, 64});
  Start(5, 16);
  ASSERT_EQ(plans_.back().opens.size(), 1u);
  EXPECT_EQ(plans_.back().opens[0].attempt_id, 5u);
  EXPECT_TRUE(plans_.back().aborts.empty());
  EXPECT_EQ(planner_->load().open, 1);
  EXPECT_EQ(planner_->load().queued, 0);
}

using PlannerBoundsDeathTest = PlannerBoundsTest;

TEST_F(PlannerBoundsDeathTest, NobodyIsAStageThatTheChainHasNot) {
  Up();
  Start(1, 64);
  EXPECT_DEATH(Done(2, 1), "rank 0 of stage 2");
  EXPECT_DEATH(Send(StageRequestClosed{0, kEpoch, {1}, 1}), "rank 1 of stage 0");
}

TEST_F(PlannerBoundsTest, ACloseOfWhatWaitsIsNothing) {
  Up(4);
  Start(1, 64);
  Start(2, 64);
  Closed(0, 2);
  Closed(1, 2);
  EXPECT_TRUE(finished_.empty());
  EXPECT_EQ(planner_->load().queued, 1);
}

// Stages that have given a request up still wait for its final item or its abort.
TEST_F(PlannerBoundsTest, ARequestIsHeldUntilItsLastPlanIsOut) {
  Up();
  Start(1, 250);  // Two plans are out, two more are to come.
  Closed(0, 1);
  Closed(1, 1);
  for (const int stage : {0, 1}) {
    Done(stage, 1);
    Done(stage, 2);
  }
  EXPECT_TRUE(finished_.empty());
  EXPECT_EQ(planner_->load().owned_pages, 16);
  ASSERT_EQ(plans_.size(), 4u);
  for (const int stage : {0, 1}) {
    Done(stage, 3);
    EXPECT_TRUE(finished_.empty());
    Done(stage, 4);
  }
  EXPECT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(planner_->AtRest());
}

TEST_F(PlannerBoundsTest, AFailedRequestIsHeldUntilItsAbortIsOut) {
  PlannerLimits limits = Limits();
  limits.plan_window = limits.stage0_lead = 1;
  Make(limits);
  PlannerTest::Up(1);
  Start(1, 200);
  Send(StageRequestClosed{0, kEpoch, {1, absl::UnavailableError("decode is gone")}});
  EXPECT_EQ(finished_.size(), 1u);
  Done(0, 1);
  EXPECT_THAT(plans_.back().aborts, ElementsAre(1)) << "the stage waits for it";
  EXPECT_EQ(planner_->load().owned_pages, 13);
  Done(0, 2);
  EXPECT_TRUE(planner_->AtRest());
}

// Tokens of a prompt that did not ask for them, or too many, are another request's: its own end.
TEST_F(PlannerBoundsTest, PromptTokensNobodyAskedForFailTheRequestAtOnce) {
  Up();
  Start(1, 128);
  Send(StagePlanDone{1, kEpoch, {1, 1, 1, {{1, 1, {SampledToken{}}}}}});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(absl::IsInternal(finished_[0].status));
  Send(StartRequested{2, 100, TicketFor(100), kNeverUs, true});
  Send(StagePlanDone{1, kEpoch, {2, 1, 1, {{2, 2, {SampledToken{}}}}}});
  ASSERT_EQ(finished_.size(), 2u);
  EXPECT_TRUE(absl::IsInternal(finished_[1].status)) << "the first is missing";
  Send(StartRequested{3, 20, TicketFor(20), kNeverUs, true});
  for (const uint64_t number : {1u, 2u}) Done(0, number);
  Send(StagePlanDone{1, kEpoch, {3, 1, 1, {{3, 1, std::vector<SampledToken>(20)}}}});
  ASSERT_EQ(finished_.size(), 3u);
  EXPECT_TRUE(absl::IsInternal(finished_[2].status)) << "one too many";
  Send(StagePlanDone{1, kEpoch, {4, 1, 1, {{99, 1, {SampledToken{}}}, {1, 2, {SampledToken{}}}}}});
  EXPECT_EQ(finished_.size(), 3u) << "of nobody, and of one that has ended";
}

TEST_F(PlannerBoundsTest, AnAbortHasAReason) {
  Up();
  Start(1, 64);
  Send(AbortRequested{1, absl::OkStatus()});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(finished_[0].status));
  EXPECT_EQ(planner_->load().queued_tokens, 0);
}

}  // namespace
}  // namespace baton::prefill
