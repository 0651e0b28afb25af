#include "services/prefill/core/chain_planner.h"

#include <gtest/gtest.h>

#include <climits>
#include <utility>
#include <vector>

#include "services/prefill/core/planner_fixture.h"

namespace baton::prefill {
namespace {

class ChainPlannerTest : public PlannerTest {
 protected:
  void DoneEverywhere(uint64_t number, int stages = 2) {
    for (int stage = 0; stage < stages; ++stage) Done(stage, number);
  }
};

TEST_F(ChainPlannerTest, CollectsThePromptsTokensFromTheLastStage) {
  Up();
  Send(StartRequested{1, 80, TicketFor(80), kNeverUs, true});
  const auto tell = [this](uint64_t number, int first, int count, int stage = 1) {
    PlanDone done{number, 1, 1, {{1, first, {}}}};
    for (int i = first; i < first + count; ++i) done.prompt_tokens[0].tokens.push_back({i, -1, {}});
    Send(StagePlanDone{stage, kEpoch, done});
  };
  Done(0, 1);
  tell(1, 1, 64);
  Done(0, 2);
  tell(2, 65, 15);
  Closed(0, 1);
  Closed(1, 1);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].status, absl::OkStatus());
  ASSERT_EQ(finished_[0].outcome.prompt_tokens.size(), 79u);
  for (int i = 1; i < 80; ++i) EXPECT_EQ(finished_[0].outcome.prompt_tokens[i - 1].token, i);
  EXPECT_TRUE(planner_->AtRest());
}

TEST_F(ChainPlannerTest, PromptTokensThatAreMissingOrOutOfPlaceFailTheRequest) {
  for (const auto& [first, count] : std::vector<std::pair<int, int>>{{1, 18}, {2, 18}, {1, 20}}) {
    Make(Limits());
    finished_.clear();
    Up();
    Send(StartRequested{1, 20, TicketFor(20), kNeverUs, true});
    Done(0, 1);
    Send(StagePlanDone{
        1, kEpoch, {1, 1, 1, {{1, first, std::vector<SampledToken>(static_cast<size_t>(count))}}}});
    Closed(0, 1);
    Closed(1, 1);
    ASSERT_EQ(finished_.size(), 1u);
    EXPECT_EQ(finished_[0].status.code(), absl::StatusCode::kInternal) << first << ", " << count;
    DoneEverywhere(2);
    EXPECT_TRUE(planner_->AtRest());
  }
}

TEST_F(ChainPlannerTest, ProgressIsWhatTheLastStageHasDone) {
  Up();
  Start(1, 150);
  Start(2, 10);
  Done(0, 1);
  EXPECT_TRUE(planner_->load().prompts.empty());
  Done(1, 1);
  ASSERT_EQ(planner_->load().prompts.size(), 1u);
  EXPECT_EQ(planner_->load().prompts[0].attempt_id, 1u);
  EXPECT_EQ(planner_->load().prompts[0].computed_tokens, plans_[0].items[0].token_count);
  Send(AbortRequested{1, absl::CancelledError("gone")});
  for (uint64_t number = 2; number <= plans_.size(); ++number) {
    for (const int stage : {0, 1}) Done(stage, number);
  }
  for (const int stage : {0, 1}) Closed(stage, 1);
  for (const PromptProgress& prompt : planner_->load().prompts) EXPECT_EQ(prompt.attempt_id, 2u);
}

TEST_F(ChainPlannerTest, RefusesWhileDown) {
  Start(1, 10);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(planner_->AtRest());
}

TEST_F(ChainPlannerTest, CutsAPromptIntoChunksUnderTheWindow) {
  Up();
  Start(1, 150);
  ASSERT_EQ(plans_.size(), 2u);  // stage0_lead
  EXPECT_EQ(plans_[0].number, 1u);
  ASSERT_EQ(plans_[0].opens.size(), 1u);
  EXPECT_EQ(plans_[0].opens[0].pages.size(), 10u);
  EXPECT_EQ(plans_[1].items[0].token_begin, 64);
  EXPECT_TRUE(plans_[1].opens.empty());
  Done(0, 1);
  ASSERT_EQ(plans_.size(), 3u);
  EXPECT_EQ(plans_[2].items[0].token_begin, 128);
  EXPECT_EQ(plans_[2].items[0].token_count, 22);
  EXPECT_TRUE(plans_[2].items[0].final);
  EXPECT_FALSE(plans_[1].items[0].final);
}

TEST_F(ChainPlannerTest, TheWindowWaitsForTheLastStage) {
  Up();
  Start(1, 640);
  Done(0, 1);
  Done(0, 2);
  EXPECT_EQ(plans_.size(), 3u);  // plan_window: the last stage has done none
  Done(1, 1);
  EXPECT_EQ(plans_.size(), 4u);
}

TEST_F(ChainPlannerTest, ThePlanAfterAFullQueueTakesTheLastTokenToo) {
  Up();
  Start(1, 40);
  Start(2, 40);  // As many plans as stage 0 takes.
  Start(3, 63);
  Start(4, 1);
  ASSERT_EQ(plans_.size(), 2u);
  now_us_ += 4000;
  Done(0, 1);
  ASSERT_EQ(plans_.size(), 3u);
  ASSERT_EQ(plans_[2].items.size(), 2u) << "one token of the plan was left, and one is enough";
  EXPECT_EQ(plans_[2].TokenCount(), 64);
  for (uint64_t number = 1; number <= 3; ++number) DoneEverywhere(number);
  for (int stage = 0; stage < 2; ++stage) Closed(stage, 4);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].outcome.queue_us, 4000) << "since it came";
}

TEST_F(ChainPlannerTest, FinishesWhenEveryStageHasClosed) {
  Up();
  Start(1, 40);
  now_us_ = 5000;
  Done(0, 1);
  Closed(0, 1);
  EXPECT_TRUE(finished_.empty());
  now_us_ = 7000;
  Done(1, 1);
  EXPECT_EQ(planner_->load().owned_pages, 3);
  Closed(1, 1);
  ASSERT_EQ(finished_.size(), 1u);
  const PrefillOutcome& outcome = finished_[0].outcome;
  EXPECT_TRUE(finished_[0].status.ok());
  ASSERT_EQ(outcome.chunks.size(), 1u);
  EXPECT_EQ(outcome.chunks[0].token_count, 40);
  EXPECT_EQ(outcome.chunks[0].stages[1].compute_us, 20);
  EXPECT_EQ(outcome.compute_us, 6000);
  EXPECT_EQ(outcome.kv_bytes, 200);
  EXPECT_EQ(outcome.kv_transfer_us, 10);
  EXPECT_EQ(planner_->load().owned_pages, 0);
  EXPECT_EQ(planner_->load().plans_in_flight, 0);
  EXPECT_TRUE(planner_->AtRest());
}

TEST_F(ChainPlannerTest, PacksShortPromptsBehindALongOne) {
  Up();
  Start(1, 100);  // plan 1: 64 tokens; plan 2: its last 36
  Start(2, 20);
  Start(3, 60);
  ASSERT_EQ(plans_.size(), 2u);
  Done(0, 1);
  ASSERT_EQ(plans_.size(), 3u);
  ASSERT_EQ(plans_[2].items.size(), 2u);
  EXPECT_EQ(plans_[2].items[0].attempt_id, 2u);
  EXPECT_TRUE(plans_[2].items[0].final);
  EXPECT_EQ(plans_[2].items[1].attempt_id, 3u);
  EXPECT_EQ(plans_[2].items[1].token_count, 32);  // 44 left: whole pages
  EXPECT_EQ(plans_[2].opens.size(), 2u);
}

TEST_F(ChainPlannerTest, DoesNotOpenAPromptWithoutAChunk) {
  Up();
  Start(1, 60);
  Start(9, 64);
  Start(2, 50);
  Start(3, 100);
  Done(0, 1);  // 50 of attempt 2 leave 14: less than a page of attempt 3
  ASSERT_EQ(plans_.size(), 3u);
  EXPECT_EQ(plans_[2].items.size(), 1u);
  EXPECT_EQ(plans_[2].opens.size(), 1u);
  EXPECT_EQ(planner_->load().queued, 1);
}

TEST_F(ChainPlannerTest, TheOldestWaitsForPagesAndIsNotOvertaken) {
  Up(2, 10);
  Start(1, 100);  // 7 pages
  Start(2, 80);   // 5: must wait
  Start(3, 16);   // 1: would fit
  DoneEverywhere(1);
  DoneEverywhere(2);
  EXPECT_EQ(planner_->load().queued, 2);
  Closed(0, 1);
  Closed(1, 1);
  EXPECT_EQ(planner_->load().queued, 0);
  ASSERT_EQ(plans_.size(), 4u);
  EXPECT_EQ(plans_[2].items[0].attempt_id, 2u);
}

TEST_F(ChainPlannerTest, WholePromptsFitOnePlan) {
  PlannerLimits limits = Limits();
  limits.chunk_tokens = INT_MAX;
  Make(limits);
  Up();
  EXPECT_EQ(planner_->max_plan_tokens(), 1008);
  Start(1, 999);
  ASSERT_EQ(plans_.size(), 1u);
  EXPECT_EQ(plans_[0].TokenCount(), 999);
  EXPECT_TRUE(plans_[0].items[0].final);
}

TEST_F(ChainPlannerTest, RefusesWhatCannotRun) {
  Up(2, 10);
  Start(1, 1001);
  Start(2, 0);
  Start(3, 161);
  Send(StartRequested{4, 20, TicketFor(21), kNeverUs});
  ASSERT_EQ(finished_.size(), 4u);
  EXPECT_EQ(finished_[0].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(finished_[1].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(finished_[2].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(finished_[3].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(planner_->AtRest());
}

TEST_F(ChainPlannerTest, RefusesBeyondTheQueue) {
  Up();
  for (uint64_t attempt = 1; attempt <= 13; ++attempt) Start(attempt, 64);
  ASSERT_EQ(finished_.size(), 3u);  // 2 in plans, 8 wait
  EXPECT_EQ(finished_[0].attempt_id, 11u);
  EXPECT_EQ(finished_[0].status.code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ChainPlannerTest, ADuplicateLeavesTheFirstAlone) {
  Up();
  Start(1, 40);
  Start(1, 40);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].status.code(), absl::StatusCode::kAlreadyExists);
  DoneEverywhere(1);
  Closed(0, 1);
  Closed(1, 1);
  ASSERT_EQ(finished_.size(), 2u);
  EXPECT_TRUE(finished_[1].status.ok());
}

TEST_F(ChainPlannerTest, AbortOfAQueuedRequestEndsItAtOnce) {
  Up();
  Start(1, 128);
  Start(2, 64);
  Send(AbortRequested{2, absl::CancelledError("client")});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].status, absl::CancelledError("client"));
  EXPECT_EQ(planner_->load().queued, 0);
}

TEST_F(ChainPlannerTest, AbortOfAnOpenRequestKeepsItsPagesUntilTheStagesClosed) {
  Up();
  Start(1, 640);
  Send(AbortRequested{1, absl::CancelledError("client")});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(plans_.size(), 2u);
  Done(0, 1);
  ASSERT_EQ(plans_.size(), 3u);
  EXPECT_TRUE(plans_[2].items.empty());
  EXPECT_EQ(plans_[2].aborts, std::vector<uint64_t>{1});
  EXPECT_EQ(planner_->load().plans_in_flight, 3) << "also the one that has nothing but an abort";
  Done(0, 2);
  Done(0, 3);
  Closed(0, 1, absl::CancelledError("aborted"));
  DoneEverywhere(1);
  Done(1, 2);
  EXPECT_EQ(planner_->load().owned_pages, 40);
  Closed(1, 1, absl::CancelledError("aborted"));
  EXPECT_EQ(planner_->load().owned_pages, 40);  // plan 3 is not done on stage 1
  Done(1, 3);
  EXPECT_TRUE(planner_->AtRest());
  EXPECT_EQ(planner_->load().owned_pages, 0);
  EXPECT_EQ(finished_.size(), 1u);
}

TEST_F(ChainPlannerTest, AStagesErrorFailsTheRequestAndAbortsItElsewhere) {
  Up();
  Start(1, 640);
  Closed(1, 1, absl::UnavailableError("decode is gone"));
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].status, absl::UnavailableError("decode is gone"));
  Done(0, 1);
  ASSERT_EQ(plans_.size(), 3u);
  EXPECT_EQ(plans_[2].aborts, std::vector<uint64_t>{1});
  DoneEverywhere(2);
  DoneEverywhere(3);
  EXPECT_FALSE(planner_->AtRest());
  Closed(0, 1, absl::CancelledError("aborted"));
  EXPECT_TRUE(planner_->AtRest());
}

TEST_F(ChainPlannerTest, DeadlinesEndQueuedAndOpenRequests) {
  Up();
  Start(1, 128, 2000);
  Start(2, 64, 3000);
  EXPECT_EQ(planner_->NextDeadlineUs(), 2000);
  now_us_ = 2000;
  Send(Tick{});
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].attempt_id, 1u);
  EXPECT_EQ(finished_[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  now_us_ = 3000;
  Send(Tick{});
  EXPECT_EQ(finished_.size(), 2u);
  EXPECT_EQ(planner_->NextDeadlineUs(), kNeverUs);
  EXPECT_EQ(planner_->load().queued, 0);
}

TEST_F(ChainPlannerTest, ChainDownEndsEverythingAndOldEventsAreIgnored) {
  Up();
  Start(1, 128);
  Start(2, 64);
  Done(0, 1);
  EXPECT_EQ(planner_->plans_done(0), 1u);
  EXPECT_EQ(planner_->plans_done(1), 0u);
  EXPECT_EQ(planner_->plans_done(2), 0u) << "there is no such stage";
  Send(ChainDown{absl::UnavailableError("stage 1 is gone")});
  ASSERT_EQ(finished_.size(), 2u);
  EXPECT_EQ(finished_[1].status, absl::UnavailableError("stage 1 is gone"));
  EXPECT_TRUE(planner_->AtRest());
  EXPECT_EQ(planner_->plans_done(0), 0u) << "there is no such stage";
  Send(ChainUp{kEpoch + 1, 2, 64});
  Start(3, 64);
  Done(0, 1);  // of the old epoch, and so are these
  Closed(0, 3, absl::InternalError("another attempt 3"));
  Closed(1, 3);
  EXPECT_EQ(finished_.size(), 2u);
  EXPECT_EQ(planner_->load().plans_in_flight, 1);
  EXPECT_EQ(plans_.back().epoch, kEpoch + 1);
  EXPECT_EQ(plans_.back().number, 1u);
}

TEST_F(ChainPlannerTest, UnknownAttemptsAreIgnored) {
  Up();
  Send(AbortRequested{99, absl::CancelledError("client")});
  Closed(0, 99);
  Done(0, 5);
  EXPECT_TRUE(actions_.empty());
  EXPECT_TRUE(planner_->AtRest());
}

}  // namespace
}  // namespace baton::prefill
