// When a plan's KV leaves: behind its activations, which the next stage waits for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>
#include <vector>

#include "services/prefill/core/stage_fixture.h"

namespace baton::prefill {
namespace {

using testing::ElementsAre;

class StageKvTest : public StageTest {
 protected:
  void Passed(uint64_t number) { Send(ActivationsSent{kEpoch, number, absl::OkStatus()}); }
  std::vector<int> FirstPages() const {
    std::vector<int> pages;
    for (const SendKv& send : All<SendKv>()) pages.push_back(send.first_page);
    return pages;
  }
};

TEST_F(StageKvTest, KvWaitsUntilItsPlansActivationsHaveLeft) {
  Make(0, 2);
  Send(PlanArrived{ChunkPlan(1)});
  Computed(1);
  EXPECT_TRUE(Has<SendActivations>());
  EXPECT_FALSE(Has<SendKv>());
  Passed(1);
  ASSERT_THAT(FirstPages(), ElementsAre(0));
  EXPECT_THAT(All<SendKv>()[0].pages, ElementsAre(10, 11));
}

TEST_F(StageKvTest, KvGoesWhileActivationsWaitForACredit) {
  Make(0, 2);
  for (uint64_t number = 1; number <= 3; ++number) Send(PlanArrived{ChunkPlan(number)});
  for (uint64_t number = 1; number <= 2; ++number) {
    Computed(number);
    Passed(number);
  }
  Computed(3);
  EXPECT_FALSE(Has<SendActivations>()) << "two credits are out";
  EXPECT_THAT(FirstPages(), ElementsAre(4));
  EXPECT_TRUE(Has<SendCommit>());
  Send(CreditReturned{kEpoch, 1});
  EXPECT_TRUE(Has<SendActivations>());
  Passed(3);
  EXPECT_FALSE(Has<SendKv>()) << "it has gone";
}

TEST_F(StageKvTest, WhatIsCachedGoesWhileTheFirstChunkIsComputed) {
  Make(0, 1);
  Plan plan = ChunkPlan(1);
  plan.opens.at(0).cached_tokens = 32;
  plan.items.at(0).token_begin = 32;
  Send(PlanArrived{plan});
  ASSERT_TRUE(Has<RunCompute>());
  ASSERT_EQ(All<SendKv>().size(), 1u);
  EXPECT_EQ(All<SendKv>()[0].first_page, 0);
  EXPECT_EQ(All<SendKv>()[0].pages.size(), 2u);
  Computed(1);
  ASSERT_EQ(All<SendKv>().size(), 1u);
  EXPECT_EQ(All<SendKv>()[0].first_page, 2);
}

// What decode holds is not sent; the commit covers it all the same.
TEST_F(StageKvTest, NothingIsSentBeforeTheTicketsFirstPage) {
  Make(0, 1);
  Plan plan = ChunkPlan(1);
  plan.opens.at(0).ticket->first_page = 3;
  Send(PlanArrived{plan});
  Computed(1);
  EXPECT_FALSE(Has<SendKv>());
  Send(PlanArrived{ChunkPlan(2)});
  Computed(2);
  ASSERT_THAT(FirstPages(), ElementsAre(3));
  EXPECT_THAT(All<SendKv>()[0].pages, ElementsAre(13));
  Send(PlanArrived{ChunkPlan(3)});
  Computed(3, {SampledToken{1, 0, {}}});
  EXPECT_THAT(FirstPages(), ElementsAre(4));
  EXPECT_TRUE(Has<SendCommit>());
}

TEST_F(StageKvTest, OfWhatIsCachedOnlyWhatDecodeLacksGoes) {
  for (const auto& [first_page, sent] : {std::pair(1, 1), {2, 0}, {5, 0}}) {
    Make(0, 1);
    Plan plan = ChunkPlan(1);
    plan.opens.at(0).ticket->first_page = first_page;
    plan.opens[0].cached_tokens = 32;
    plan.items.at(0).token_begin = 32;
    Send(PlanArrived{plan});
    EXPECT_EQ(All<SendKv>().size(), static_cast<size_t>(sent)) << first_page;
  }
}

TEST_F(StageKvTest, AFirstPageOutsideThePromptEndsTheEpoch) {
  for (const int first_page : {-1, 6}) {
    Make(0, 1);
    Plan plan = ChunkPlan(1);
    plan.opens.at(0).ticket->first_page = first_page;
    Send(PlanArrived{plan});
    EXPECT_TRUE(Has<EndEpoch>());
  }
}

TEST_F(StageKvTest, WhatIsCachedWaitsForThePlanThatComputesIt) {
  Make(0, 1, /*plans_in_flight=*/2);
  Send(PlanArrived{ChunkPlan(1)});
  Plan second = ChunkPlan(2);
  Plan opens = ChunkPlan(1);
  second.opens = opens.opens;
  second.opens.at(0).attempt_id = 2;
  second.opens[0].cached_tokens = 32;
  second.items.at(0).attempt_id = 2;
  second.items[0].token_begin = 32;
  second.items[0].final = false;
  Send(PlanArrived{second});
  EXPECT_FALSE(Has<SendKv>());
  Computed(1);
  EXPECT_EQ(All<SendKv>().size(), 2u) << "what the first has computed, and what the second has";
}

// A commit covers what went before it.
TEST_F(StageKvTest, KvKeepsThePlansOrder) {
  Make(0, 2);
  for (uint64_t number = 1; number <= 3; ++number) Send(PlanArrived{ChunkPlan(number)});
  Computed(1);
  Computed(2);
  Passed(2);
  EXPECT_FALSE(Has<SendKv>()) << "plan 1's is still to come";
  Passed(1);
  EXPECT_THAT(FirstPages(), ElementsAre(0, 2));

  Make(0, 2);
  for (uint64_t number = 1; number <= 3; ++number) Send(PlanArrived{ChunkPlan(number)});
  Computed(1);
  Passed(1);
  Computed(2);
  Computed(3);
  EXPECT_FALSE(Has<SendActivations>()) << "two credits are out";
  EXPECT_FALSE(Has<SendKv>()) << "plan 2's is still to come";
  Passed(2);
  EXPECT_THAT(FirstPages(), ElementsAre(2, 4));
  ASSERT_TRUE(Has<SendCommit>());
  EXPECT_TRUE(std::holds_alternative<SendCommit>(actions_.back()));
}

TEST_F(StageKvTest, AnAbortTakesWhatWaitsOfItsRequestAlone) {
  Make(0, 2);
  Plan plan{kEpoch, 1, {}, {{1, 0, 10, true}, {2, 0, 16, false}}, {}};
  plan.opens = {{1, TicketFor(10), {3}}, {2, TicketFor(20), {4, 5}}};
  Send(PlanArrived{plan});
  Computed(1);
  Send(PlanArrived{Plan{kEpoch, 2, {}, {}, {1}}});
  EXPECT_FALSE(Has<CancelKv>()) << "nothing of it is on its way";
  ASSERT_EQ(All<ReportRequestClosed>().size(), 1u);
  EXPECT_EQ(All<ReportRequestClosed>()[0].closed.attempt_id, 1u);
  EXPECT_EQ(All<ReportRequestClosed>()[0].closed.status.code(), absl::StatusCode::kCancelled);
  Passed(1);
  ASSERT_EQ(All<SendKv>().size(), 1u);
  EXPECT_EQ(All<SendKv>()[0].attempt_id, 2u);
  EXPECT_FALSE(Has<SendCommit>());
}

TEST_F(StageKvTest, AnAbortOfTheOnlyRequestLeavesNothingThatWaits) {
  Make(0, 2);
  Send(PlanArrived{ChunkPlan(1)});
  Computed(1);
  Send(PlanArrived{Plan{kEpoch, 2, {}, {}, {1}}});
  EXPECT_TRUE(Has<ReportRequestClosed>());
  Passed(1);
  EXPECT_TRUE(actions_.empty());
  EXPECT_TRUE(stage_->AtRest());
}

// Attempt 2's activations wait for a credit, and its KV only for attempt 1's before it.
TEST_F(StageKvTest, AnAbortLetsGoWhatWaitedBehindIt) {
  Make(0, 2);
  Send(PlanArrived{ChunkPlan(1)});
  Send(PlanArrived{ChunkPlan(2)});
  Send(PlanArrived{Plan{kEpoch, 3, {{2, TicketFor(20), {4, 5}}}, {{2, 0, 16, false}}, {}}});
  Computed(1);
  Passed(1);
  Computed(2);
  Computed(3);
  EXPECT_FALSE(Has<SendKv>() || Has<SendActivations>());
  Send(PlanArrived{Plan{kEpoch, 4, {}, {}, {1}}});
  EXPECT_TRUE(Has<CancelKv>()) << "of plan 1";
  ASSERT_EQ(All<SendKv>().size(), 1u);
  EXPECT_EQ(All<SendKv>()[0].attempt_id, 2u);
}

// Some of it is on its way, some waits.
TEST_F(StageKvTest, AnAbortCancelsWhatHasBegunBesideWhatWaits) {
  Make(0, 2);
  Send(PlanArrived{ChunkPlan(1)});
  Send(PlanArrived{ChunkPlan(2)});
  Computed(1);
  Passed(1);
  Computed(2);
  Send(PlanArrived{Plan{kEpoch, 3, {}, {}, {1}}});
  EXPECT_TRUE(Has<CancelKv>());
  EXPECT_FALSE(Has<ReportRequestClosed>()) << "the first chunk's pages are being read";
  Sent(1, absl::CancelledError("as told"));
  EXPECT_TRUE(Has<ReportRequestClosed>());
  Passed(2);
  EXPECT_TRUE(actions_.empty());
}

TEST_F(StageKvTest, WhatWaitsEndsWithTheEpoch) {
  Make(0, 2);
  Send(PlanArrived{ChunkPlan(1)});
  Computed(1);
  Send(EpochEnded{});
  Send(ActivationsSent{kEpoch, 1, absl::CancelledError("the epoch is over")});
  EXPECT_TRUE(actions_.empty());
  EXPECT_TRUE(stage_->AtRest());
  Send(EpochBegan{kEpoch + 1});
  EXPECT_TRUE(stage_->AtRest());
}

TEST_F(StageKvTest, TheLastStagePassesNothingAndSendsAtOnce) {
  Make(1, 2);
  Send(ActivationsArrived{kEpoch, 1});
  Send(PlanArrived{ChunkPlan(1)});
  Computed(1);
  EXPECT_THAT(FirstPages(), ElementsAre(0));
}

}  // namespace
}  // namespace baton::prefill
