// What stages say of a chain and stage 0 of itself: who hears of it, and what it breaks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "services/prefill/core/wiring_fixture.h"

namespace baton::prefill {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(WiringTest, WhatStagesReportGoesToThePlannerAndTheOwnStage) {
  BringUp();
  const uint64_t epoch = wiring_.epoch();
  Handle(PlanDoneHeard{2, epoch, {.number = 3}});
  ASSERT_THAT(actions_, SizeIs(1)) << "the own stage's neighbour is stage 1";
  EXPECT_EQ(All<PassPlanDone>().at(0).stage, 2);
  EXPECT_EQ(All<PassPlanDone>().at(0).epoch, epoch);
  EXPECT_EQ(All<PassPlanDone>().at(0).done.number, 3u);
  Handle(PlanDoneHeard{1, epoch, {.number = 4}});
  ASSERT_THAT(actions_, SizeIs(2));
  EXPECT_EQ(std::get<PassPlanDone>(actions_[0]).done.number, 4u) << "the planner hears it first";
  EXPECT_EQ(std::get<TellOwnStage>(actions_[1]).epoch, epoch);
  Handle(RequestClosedHeard{2, epoch, {.attempt_id = 9}});
  ASSERT_THAT(actions_, SizeIs(1));
  EXPECT_EQ(All<PassRequestClosed>().at(0).closed.attempt_id, 9u);
  Handle(PlanDoneHeard{1, epoch - 1, {}});
  EXPECT_THAT(actions_, IsEmpty()) << "of an older epoch";
  Handle(RequestClosedHeard{1, epoch - 1, {}});
  EXPECT_THAT(actions_, IsEmpty());
}

TEST_F(WiringTest, ReportsBeforeTheChainIsUpBreakIt) {
  for (const bool closed : {false, true}) {
    SeeAll();
    now_us_ += 3 * kSecondUs;
    const uint64_t epoch = TryToWire();
    ASSERT_GT(epoch, 0u);
    Handle(StageReady{1, epoch, 7});
    if (closed) {
      Handle(RequestClosedHeard{1, epoch, {}});
    } else {
      Handle(PlanDoneHeard{1, epoch, {}});
    }
    EXPECT_THAT(All<PassPlanDone>(), IsEmpty());
    EXPECT_THAT(All<PassRequestClosed>(), IsEmpty());
    ASSERT_THAT(All<ReportChainDown>(), SizeIs(1));
    EXPECT_EQ(InstanceOf(All<ReportChainDown>().at(0).status), "prefill-1");
  }
}

TEST_F(WiringTest, EverythingAStageSaysIsASignOfLife) {
  BringUp();
  const uint64_t epoch = wiring_.epoch();
  for (int i = 0; i < 10; ++i) {
    now_us_ += kSecondUs;
    Handle(PlanDoneHeard{1, epoch, {}});
    Handle(RequestClosedHeard{2, epoch, {}});
    Handle(WiringTick{wall_clock_us_});
    ASSERT_TRUE(wiring_.up());
  }
}

TEST_F(WiringTest, ItsOwnFailureIsToldAsItsOwnUnlessItNamesAnother) {
  BringUp();
  Handle(ChainFailed{absl::DataLossError("activations are damaged")});
  absl::Status status = All<ReportChainDown>().at(0).status;
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(), "prefill stage 0 (prefill-0): activations are damaged");
  EXPECT_EQ(LegOf(status), "prefill");
  EXPECT_EQ(InstanceOf(status), "prefill-0");
  now_us_ += kSecondUs;
  BringUp();
  Handle(ChainFailed{WithLeg(absl::UnavailableError("gone"), "prefill", "prefill-1")});
  status = All<ReportChainDown>().at(0).status;
  EXPECT_EQ(InstanceOf(status), "prefill-1");
}

}  // namespace
}  // namespace baton::prefill
