// Reports of stages, and of stage 0 on itself: who receives them, and what they break.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "services/links/core/wiring_fixture.h"

namespace baton::links {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(WiringTest, WhatStagesReportIsPassedAndTheOwnStageToldOfItsNeighbour) {
  BringUp();
  const uint64_t epoch = wiring_.epoch();
  Handle(ReportHeard{2, epoch});
  ASSERT_THAT(actions_, SizeIs(1)) << "the own stage's neighbour is stage 1";
  EXPECT_EQ(All<PassReport>().at(0).stage, 2);
  EXPECT_EQ(All<PassReport>().at(0).epoch, epoch);
  Handle(ReportHeard{1, epoch});
  ASSERT_THAT(actions_, SizeIs(2));
  EXPECT_EQ(std::get<PassReport>(actions_[0]).stage, 1) << "the planner hears it first";
  EXPECT_EQ(std::get<TellOwnStage>(actions_[1]).epoch, epoch);
  Handle(ReportHeard{1, epoch - 1});
  EXPECT_THAT(actions_, IsEmpty()) << "of an older epoch";
}

TEST_F(WiringTest, ReportsBeforeTheChainIsUpBreakIt) {
  SeeAll();
  const uint64_t epoch = TryToWire();
  ASSERT_GT(epoch, 0u);
  Handle(StageReady{1, epoch, 7});
  Handle(ReportHeard{1, epoch});
  EXPECT_THAT(All<PassReport>(), IsEmpty());
  ASSERT_THAT(All<ReportChainDown>(), SizeIs(1));
  EXPECT_EQ(InstanceOf(All<ReportChainDown>().at(0).status), "prefill-1");
}

TEST_F(WiringTest, EverythingAStageSaysIsASignOfLife) {
  BringUp();
  const uint64_t epoch = wiring_.epoch();
  for (int i = 0; i < 10; ++i) {
    now_us_ += kSecondUs;
    Handle(ReportHeard{1, epoch});
    Handle(ReportHeard{2, epoch});
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
}  // namespace baton::links
