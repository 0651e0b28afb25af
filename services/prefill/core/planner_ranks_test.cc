// The planner of a chain whose stages are several ranks.
#include <gmock/gmock.h>

#include "services/prefill/core/planner_fixture.h"
#include "services/prefill/core/planner_state.h"

namespace baton::prefill {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

PlanDone Plan(uint64_t number, int64_t compute_us = 10, int64_t wait_us = 0) {
  return {number, compute_us, wait_us, {}};
}

TEST(RankTallyTest, APlanIsDoneWhenItIsOnAllRanksAndTookAsLongAsOnTheLastToBegin) {
  RankTally tally(3);
  EXPECT_THAT(tally.Add(1, Plan(1, 70, 5)), IsEmpty());
  EXPECT_THAT(tally.Add(0, Plan(1, 90, 9)), IsEmpty());
  EXPECT_THAT(tally.Add(0, Plan(2, 10, 1)), IsEmpty());
  EXPECT_EQ(tally.slowest(), 2);
  const std::vector<PlanDone> done = tally.Add(2, Plan(1, 80, 7));
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(done[0].number, 1u);
  EXPECT_EQ(done[0].compute_us, 70) << "the others have waited for rank 1";
  EXPECT_EQ(done[0].wait_us, 5);
  EXPECT_EQ(tally.slowest(), 1);
}

TEST(RankTallyTest, WhatIsSaidAgainOrOfAnOlderPlanIsNothingNew) {
  RankTally tally(2);
  EXPECT_THAT(tally.Add(0, Plan(2)), IsEmpty());
  EXPECT_THAT(tally.Add(0, Plan(2)), IsEmpty());
  EXPECT_THAT(tally.Add(0, Plan(1)), IsEmpty());
  EXPECT_THAT(tally.Add(1, Plan(1)), SizeIs(1)) << "rank 0 is further";
  EXPECT_THAT(tally.Add(1, Plan(2)), SizeIs(1));
}

TEST(RankTallyTest, APlanIsDoneOnce) {
  RankTally tally(1);
  EXPECT_THAT(tally.Add(0, Plan(1)), SizeIs(1));
  EXPECT_THAT(tally.Add(0, Plan(1)), IsEmpty());
}

TEST(RankTallyTest, PromptTokensAreRank0s) {
  for (const int first : {0, 1}) {
    RankTally tally(2);
    const auto told = [](int rank) {
      PlanDone done = Plan(1);
      done.prompt_tokens.push_back({static_cast<uint64_t>(rank) + 9, 1, {}});
      return done;
    };
    EXPECT_THAT(tally.Add(first, told(first)), IsEmpty());
    const std::vector<PlanDone> done = tally.Add(1 - first, told(1 - first));
    ASSERT_THAT(done, SizeIs(1));
    ASSERT_THAT(done[0].prompt_tokens, SizeIs(1));
    EXPECT_EQ(done[0].prompt_tokens[0].attempt_id, 9u);
  }
}

class PlannerRanksTest : public PlannerTest {
 protected:
  PlannerRanksTest() {
    ChainUp up{kEpoch, 2, 64};
    up.ranks = 2;
    Send(up);
  }
  void DoneOn(int stage, int rank, uint64_t number, int64_t compute_us = 10) {
    Send(StagePlanDone{stage, kEpoch, {number, compute_us, 1, {}}, rank});
  }
  void ClosedOn(int stage, int rank, uint64_t attempt, absl::Status status = absl::OkStatus()) {
    Send(StageRequestClosed{stage, kEpoch, {attempt, std::move(status), 100, 5, 3}, rank});
  }
};

TEST_F(PlannerRanksTest, PlansAreSentAheadOfTheSlowestRank) {
  Start(1, 640);
  EXPECT_THAT(plans_, SizeIs(2));  // Stage 0's lead.
  DoneOn(0, 0, 1);
  DoneOn(0, 0, 2);
  EXPECT_THAT(plans_, SizeIs(2)) << "rank 1 of stage 0 is with the first";
  EXPECT_EQ(planner_->plans_done(0), 0u);
  DoneOn(0, 1, 1);
  EXPECT_THAT(plans_, SizeIs(3));
  EXPECT_EQ(planner_->plans_done(0), 1u);
  DoneOn(1, 1, 1);
  EXPECT_EQ(planner_->plans_done(1), 0u);
  DoneOn(1, 0, 1);
  EXPECT_EQ(planner_->plans_done(1), 1u);
}

TEST_F(PlannerRanksTest, ARequestIsOverWhenAllRanksHaveClosedIt) {
  Start(1, 60);
  for (const int stage : {0, 1}) {
    for (const int rank : {0, 1}) DoneOn(stage, rank, 1, 10 * (stage + 1) + rank);
  }
  ClosedOn(0, 0, 1);
  ClosedOn(1, 0, 1);
  ClosedOn(1, 1, 1);
  ClosedOn(1, 1, 1);  // Said again.
  EXPECT_THAT(finished_, IsEmpty());
  EXPECT_EQ(planner_->load().owned_pages, 4);
  ClosedOn(0, 1, 1);
  ASSERT_THAT(finished_, SizeIs(1));
  EXPECT_TRUE(finished_[0].status.ok());
  EXPECT_EQ(finished_[0].outcome.kv_bytes, 400);
  ASSERT_THAT(finished_[0].outcome.chunks, SizeIs(1));
  ASSERT_THAT(finished_[0].outcome.chunks[0].stages, SizeIs(2));
  EXPECT_EQ(finished_[0].outcome.chunks[0].stages[1].compute_us, 20);
  EXPECT_EQ(planner_->load().owned_pages, 0);
  EXPECT_TRUE(planner_->AtRest());
}

TEST_F(PlannerRanksTest, OneRanksFailureEndsARequestAtOnceAndItsPagesWaitForTheOthers) {
  Start(1, 640);
  ClosedOn(0, 1, 1, absl::UnavailableError("its KV can't be sent"));
  ASSERT_THAT(finished_, SizeIs(1));
  EXPECT_EQ(finished_[0].status.message(), "its KV can't be sent");
  for (const int stage : {0, 1}) {
    for (const int rank : {0, 1}) {
      for (const uint64_t number : {1u, 2u}) DoneOn(stage, rank, number);
    }
  }
  ASSERT_THAT(plans_.back().aborts, ElementsAre(1));
  for (const int stage : {0, 1}) {
    for (const int rank : {0, 1}) {
      DoneOn(stage, rank, plans_.back().number);
      EXPECT_EQ(planner_->load().owned_pages, 40) << "stage " << stage << ", rank " << rank;
      if (stage > 0 || rank == 0) ClosedOn(stage, rank, 1, absl::CancelledError("aborted"));
    }
  }
  EXPECT_TRUE(planner_->AtRest());
}

TEST_F(PlannerRanksTest, WhoIsBehindIsNamed) {
  Start(1, 60);
  DoneOn(0, 0, 1);
  DoneOn(0, 1, 1);
  DoneOn(1, 0, 1);
  EXPECT_EQ(planner_->NextDeadlineUs(), now_us_ + 3'000'000 + 1'000'000 + int64_t{20} * 10)
      << "a third more than one rank alone";
  now_us_ = planner_->NextDeadlineUs();
  Send(Tick{});
  for (const PlannerAction& action : actions_) {
    const auto* fail = std::get_if<FailChain>(&action);
    if (fail == nullptr) continue;
    EXPECT_EQ(fail->stage, 1);
    EXPECT_EQ(fail->rank, 1);
    return;
  }
  FAIL() << "the chain goes on";
}

}  // namespace
}  // namespace baton::prefill
