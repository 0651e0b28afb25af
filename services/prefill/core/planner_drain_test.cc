#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "common/base/status.h"
#include "services/prefill/core/chain_planner.h"

namespace baton::prefill {
namespace {

constexpr uint64_t kEpoch = 7;
constexpr int kTokens = 32;

class PlannerDrainTest : public testing::Test {
 protected:
  PlannerDrainTest() { Send(ChainUp{kEpoch, 1, 8}); }

  void Send(const PlannerEvent& event) {
    std::vector<PlannerAction> actions;
    planner_.Handle(event, now_us_, actions);
    ASSERT_TRUE(planner_.CheckInvariants().ok()) << planner_.CheckInvariants();
    for (const PlannerAction& action : actions) {
      if (const auto* finish = std::get_if<FinishRequest>(&action)) finished_.push_back(*finish);
    }
  }
  void Start(uint64_t attempt) {
    Send(StartRequested{attempt, kTokens, Ticket{{"decode-0", 1}, 0, 1, kTokens, 2}, kNeverUs});
  }
  void GoesThrough(uint64_t attempt, uint64_t plan) {
    Send(StagePlanDone{0, kEpoch, {plan, 1, 1, {}}});
    Send(StageRequestClosed{0, kEpoch, {attempt, absl::OkStatus(), 1, 1, 1}});
  }

  ChainPlanner planner_{{.page_size = 16,
                         .chunk_tokens = 32,
                         .plan_window = 1,
                         .stage0_lead = 1,
                         .max_open_requests = 4,
                         .max_queued_requests = 8,
                         .max_context_tokens = 1000}};
  int64_t now_us_ = 1000;
  std::vector<FinishRequest> finished_;
};

TEST_F(PlannerDrainTest, WhatIsAcceptedGoesThroughAndNothingElseComesIn) {
  Start(1);
  Start(2);  // Waits for the first one's plan.
  EXPECT_FALSE(planner_.draining());
  Send(DrainBegan{2'000'000});
  EXPECT_TRUE(planner_.draining());
  Start(3);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].attempt_id, 3u);
  EXPECT_TRUE(IsEndedByDrain(finished_[0].status)) << finished_[0].status;
  EXPECT_EQ(planner_.drain_counts().refused_total, 1);
  GoesThrough(1, 1);
  GoesThrough(2, 2);
  ASSERT_EQ(finished_.size(), 3u);
  EXPECT_TRUE(finished_[1].status.ok() && finished_[2].status.ok());
  EXPECT_TRUE(planner_.AtRest());
  EXPECT_EQ(planner_.NextDeadlineUs(), kNeverUs);
}

TEST_F(PlannerDrainTest, EndsAtTheDeadlineWhatIsNotThrough) {
  Start(1);
  Start(2);
  Send(DrainBegan{2'000'000});
  EXPECT_EQ(planner_.NextDeadlineUs(), 2'000'000);
  Send(DrainBegan{3'000'000});
  EXPECT_EQ(planner_.NextDeadlineUs(), 2'000'000) << "the earlier one counts";
  now_us_ = 2'000'000;
  Send(Tick{});
  ASSERT_EQ(finished_.size(), 2u);
  for (const FinishRequest& finished : finished_) {
    EXPECT_TRUE(absl::IsUnavailable(finished.status) && IsEndedByDrain(finished.status));
  }
  EXPECT_EQ(planner_.drain_counts().time_over_total, 2);
  GoesThrough(1, 1);
  Send(StagePlanDone{0, kEpoch, {2, 1, 1, {}}});  // The plan that aborts it.
  EXPECT_TRUE(planner_.AtRest());
}

}  // namespace
}  // namespace baton::prefill
