// Plans that are with the executor together: how many, in which order they count, and what becomes
// of those behind one that fails or whose epoch ends.
#include <gtest/gtest.h>

#include "services/prefill/core/stage_fixture.h"

namespace baton::prefill {
namespace {

class StageAheadTest : public StageTest {
 protected:
  // Plans of one page each, of a prompt of six.
  static Plan PagePlan(uint64_t number) {
    const int begin = static_cast<int>(number - 1) * 16;
    Plan plan{kEpoch, number, {}, {{1, begin, 16, begin == 80}}, {}};
    if (number == 1) plan.opens.push_back({1, TicketFor(96), {10, 11, 12, 13, 14, 15}});
    return plan;
  }
  // A prompt of one page, whole.
  static Plan ShortPlan(uint64_t number, uint64_t attempt_id) {
    const int page = static_cast<int>(attempt_id) + 20;
    return {kEpoch, number, {{attempt_id, TicketFor(16), {page}}}, {{attempt_id, 0, 16, true}}, {}};
  }
  static Plan Abort(uint64_t number) { return {kEpoch, number, {}, {}, {1}}; }

  std::vector<uint64_t> Submitted() const {
    std::vector<uint64_t> numbers;
    for (const RunCompute& run : All<RunCompute>()) numbers.push_back(run.number);
    return numbers;
  }
  std::vector<uint64_t> Done() const {
    std::vector<uint64_t> numbers;
    for (const ReportPlanDone& report : All<ReportPlanDone>())
      numbers.push_back(report.done.number);
    return numbers;
  }
};

using Numbers = std::vector<uint64_t>;

TEST_F(StageAheadTest, AsManyAsMayAreSubmittedAndOneMoreForEachThatEnds) {
  for (int depth = 1; depth <= 4; ++depth) {
    SCOPED_TRACE(depth);
    Make(0, 1, depth);
    Numbers submitted;
    for (uint64_t number = 1; number <= 5; ++number) {
      Send(PlanArrived{PagePlan(number)});
      for (const uint64_t n : Submitted()) submitted.push_back(n);
    }
    Numbers expected;
    for (int number = 1; number <= depth; ++number) {
      expected.push_back(static_cast<uint64_t>(number));
    }
    EXPECT_EQ(submitted, expected);
    Computed(1);
    EXPECT_EQ(Done(), Numbers{1});
    EXPECT_EQ(Submitted(), Numbers{static_cast<uint64_t>(depth) + 1});
    EXPECT_EQ(stage_->doing(), StageDoing::kBusy);
  }
}

TEST_F(StageAheadTest, AnOutputBufferIsWaitedForOnlyWhenItIsNeededAgain) {
  for (int depth = 1; depth <= 4; ++depth) {
    SCOPED_TRACE(depth);
    Make(0, 2, depth);
    const auto buffers = static_cast<uint64_t>(OutputBuffers(depth));
    // Nothing that is computed gets sent to its end.
    uint64_t submitted = 0;
    for (uint64_t number = 1; number <= 6; ++number) {
      Send(PlanArrived{PagePlan(number)});
      submitted += Submitted().size();
      if (number > submitted) break;
      if (number < static_cast<uint64_t>(depth)) continue;
      Computed(number + 1 - static_cast<uint64_t>(depth));
      submitted += Submitted().size();
    }
    EXPECT_EQ(submitted, buffers) << "each buffer is computed into once";
    Send(ActivationsSent{kEpoch, 1, absl::OkStatus()});
    EXPECT_EQ(Submitted(), Numbers{buffers + 1}) << "into the first one's buffer";
  }
}

TEST_F(StageAheadTest, EachWaitsForItsOwnInput) {
  Make(1, 2, 3);
  for (uint64_t number = 1; number <= 3; ++number) Send(PlanArrived{PagePlan(number)});
  Send(ActivationsArrived{kEpoch, 1});
  EXPECT_EQ(Submitted(), Numbers{1});
  Send(ActivationsArrived{kEpoch, 3});
  EXPECT_TRUE(Submitted().empty()) << "plan 2 comes first";
  Send(ActivationsArrived{kEpoch, 2});
  EXPECT_EQ(Submitted(), (Numbers{2, 3}));
  Send(ActivationsArrived{kEpoch, 4});
  EXPECT_TRUE(Has<EndEpoch>()) << "plan 1's buffer is being read";
}

TEST_F(StageAheadTest, ACreditGoesBackWhenItsPlanIsComputedAndNotBefore) {
  Make(1, 2, 2);
  for (uint64_t number = 1; number <= 2; ++number) {
    Send(PlanArrived{PagePlan(number)});
    Send(ActivationsArrived{kEpoch, number});
    EXPECT_EQ(Submitted(), Numbers{number});
    EXPECT_FALSE(Has<ReturnCredit>());
  }
  Computed(1);
  ASSERT_EQ(All<ReturnCredit>().size(), 1u);
  EXPECT_EQ(All<ReturnCredit>()[0].number, 1u);
}

TEST_F(StageAheadTest, AnAbortWaitsForThePlansThatReadThePages) {
  Make(0, 1, 4);
  Send(PlanArrived{PagePlan(1)});
  Computed(1);
  Send(PlanArrived{PagePlan(2)});
  Send(PlanArrived{PagePlan(3)});
  Plan abort = ShortPlan(4, 2);
  abort.aborts = {1};
  Send(PlanArrived{abort});
  EXPECT_EQ(Submitted(), Numbers{4}) << "its own chunk waits for nobody";
  EXPECT_FALSE(Has<CancelKv>() || Has<ReportRequestClosed>());
  Computed(2);
  EXPECT_TRUE(Has<SendKv>()) << "wanted until the abort's turn";
  EXPECT_FALSE(Has<CancelKv>());
  Computed(3);
  EXPECT_TRUE(Has<CancelKv>()) << "nothing reads its pages but the sends";
  Sent(1);
  Sent(2);
  EXPECT_FALSE(Has<ReportRequestClosed>());
  Sent(3);
  ASSERT_EQ(All<ReportRequestClosed>().size(), 1u);
  EXPECT_EQ(All<ReportRequestClosed>()[0].closed.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(stage_->held_pages(), 1);
}

TEST_F(StageAheadTest, APlanWithoutItemsIsDoneInItsTurnAndHoldsNobodyUp) {
  Make(0, 1, 2);
  Send(PlanArrived{PagePlan(1)});
  Send(PlanArrived{Abort(2)});
  EXPECT_TRUE(actions_.empty());
  Send(PlanArrived{ShortPlan(3, 2)});
  EXPECT_EQ(Submitted(), Numbers{3}) << "before plan 2 has its turn";
  Computed(1);
  EXPECT_EQ(Done(), (Numbers{1, 2}));
  EXPECT_EQ(All<ReportPlanDone>()[1].done.compute_us, 0);
  EXPECT_EQ(All<ReportPlanDone>()[1].done.wait_us, 0);
  Computed(3, {SampledToken{}});
  EXPECT_EQ(Done(), Numbers{3});
}

TEST_F(StageAheadTest, TheLastStageWaitsForNoOutputBuffer) {
  for (const int stages : {1, 2}) {
    Make(0, stages, 2);
    Send(PlanArrived{PagePlan(1)});
    for (const uint64_t number : {2u, 3u}) Send(PlanArrived{Plan{kEpoch, number, {}, {}, {77}}});
    Send(PlanArrived{ShortPlan(4, 2)});
    EXPECT_EQ(Has<RunCompute>(), stages == 1) << "of three buffers the fourth plan has the first's";
  }
}

TEST_F(StageAheadTest, WhoIsAbortedIsNamedByNoLaterPlan) {
  Make(0, 1, 2);
  Send(PlanArrived{PagePlan(1)});
  Send(PlanArrived{Abort(2)});
  Plan late = PagePlan(2);
  late.number = 3;
  Send(PlanArrived{late});
  ASSERT_TRUE(Has<EndEpoch>()) << "although the abort has not had its turn";
}

TEST_F(StageAheadTest, NothingComesOfThePlansBehindOneThatFails) {
  Make(0, 2, 3);
  for (uint64_t number = 1; number <= 3; ++number) Send(PlanArrived{PagePlan(number)});
  Send(ComputeFinished{kEpoch, 1, absl::InternalError("out of memory"), 0, {}, {}});
  EXPECT_TRUE(Has<EndEpoch>());
  EXPECT_FALSE(stage_->Quiet());
  Computed(2);
  EXPECT_TRUE(actions_.empty());
  EXPECT_FALSE(stage_->Quiet()) << "another one reads and writes pages";
  Computed(3);
  EXPECT_TRUE(actions_.empty());
  EXPECT_TRUE(stage_->AtRest());
}

TEST_F(StageAheadTest, AnEpochsEndWaitsForAllThatWasSubmitted) {
  Make(0, 1, 4);
  Send(PlanArrived{PagePlan(1)});
  Send(PlanArrived{Abort(2)});
  Send(PlanArrived{ShortPlan(3, 2)});
  Send(EpochEnded{});
  EXPECT_FALSE(stage_->Quiet());
  Computed(1);
  EXPECT_TRUE(actions_.empty()) << "the abort's turn never comes";
  EXPECT_FALSE(stage_->Quiet());
  Computed(3, {SampledToken{}});
  EXPECT_TRUE(stage_->AtRest());
  Send(EpochBegan{kEpoch + 1});
  Plan plan = PagePlan(1);
  plan.epoch = kEpoch + 1;
  Send(PlanArrived{plan});
  ASSERT_TRUE(Has<RunCompute>());
  EXPECT_EQ(All<RunCompute>()[0].epoch, kEpoch + 1);
}

TEST_F(StageAheadTest, WhoIsSubmittedAheadWaitsForNothingButItsTurn) {
  Make(1, 2, 2);
  Send(PlanArrived{PagePlan(1)});
  Send(PlanArrived{PagePlan(2)});
  now_us_ = 1400;
  Send(ActivationsArrived{kEpoch, 1});
  EXPECT_EQ(All<RunCompute>()[0].wait_us, 400);
  now_us_ = 1900;
  Send(ActivationsArrived{kEpoch, 2});
  EXPECT_EQ(All<RunCompute>()[0].wait_us, 0);
  now_us_ = 2400;
  Computed(1);
  EXPECT_EQ(All<ReportPlanDone>()[0].done.wait_us, 400);
  Computed(2);
  EXPECT_EQ(All<ReportPlanDone>()[0].done.wait_us, 0) << "it began when plan 1 had ended";
}

// ---- Where the time goes ----

TEST_F(StageAheadTest, TimesAreTheReasonsAndTogetherAllOfTheTime) {
  Make(1, 3, 1);  // The first event, at 1000.
  const auto at = [this](int64_t time_us, const StageEvent& event) {
    now_us_ = time_us;
    Send(event);
  };
  at(1100, PlanArrived{PagePlan(1)});                                   // no_request: 100
  at(1500, ActivationsArrived{kEpoch, 1, 1400});                        // input: 300, transfer: 100
  at(2500, ComputeFinished{kEpoch, 1, absl::OkStatus(), 900, {}, {}});  // busy: 1000
  at(2700, PlanArrived{PagePlan(2)});                                   // bubble: 200
  at(2800, ActivationsArrived{kEpoch, 2});  // input: 100, and none in transfer
  at(3000, ComputeFinished{kEpoch, 2, absl::OkStatus(), 190, {}, {}});  // busy: 200
  at(3000, PlanArrived{PagePlan(3)});
  at(3000, ActivationsArrived{kEpoch, 3});
  at(3050, ActivationsSent{kEpoch, 1, absl::OkStatus()});  // transfer: 50; plan 1's buffer
  at(3150, ComputeFinished{kEpoch, 3, absl::OkStatus(), 90, {}, {}});  // busy: 100
  at(3150, ActivationsSent{kEpoch, 2, absl::OkStatus()});
  at(3150, PlanArrived{PagePlan(4)});
  at(3150, ActivationsArrived{kEpoch, 4});
  at(3250, ComputeFinished{kEpoch, 4, absl::OkStatus(), 90, {}, {}});  // busy: 100
  at(3250, PlanArrived{PagePlan(5)});
  at(3250, ActivationsArrived{kEpoch, 5});
  stage_->AccountTime(3300);  // credit: 50; plans 3 and 4 wait for one
  const StageTimes& times = stage_->times();
  EXPECT_EQ(times.Of(StageDoing::kNoRequest), 100);
  EXPECT_EQ(times.Of(StageDoing::kInput), 400);
  EXPECT_EQ(times.Of(StageDoing::kTransfer), 150);
  EXPECT_EQ(times.Of(StageDoing::kBubble), 200);
  EXPECT_EQ(times.Of(StageDoing::kCredit), 50);
  EXPECT_EQ(times.Of(StageDoing::kBusy), 1400);
  EXPECT_EQ(times.Together(), 2300);
}

}  // namespace
}  // namespace baton::prefill
