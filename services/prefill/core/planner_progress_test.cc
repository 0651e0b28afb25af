// A chain that has stopped although its links stand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "services/prefill/core/chain_planner.h"

namespace baton::prefill {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kEpoch = 7;
constexpr int64_t kGraceUs = 1'000'000;
constexpr int64_t kCloseGraceUs = 5'000'000;
constexpr int64_t kComputeUs = 50'000;

// Three stages and a prompt of many chunks.
class PlannerProgressTest : public testing::Test {
 protected:
  PlannerProgressTest()
      : planner_({.page_size = 16,
                  .chunk_tokens = 64,
                  .plan_window = 3,
                  .stage0_lead = 2,
                  .max_open_requests = 4,
                  .max_queued_requests = 8,
                  .max_context_tokens = 1000,
                  .plan_grace_us = kGraceUs,
                  .close_grace_us = kCloseGraceUs}) {
    Send(ChainUp{kEpoch, 3, 64});
    Start();
  }

  void Start() {
    Ticket ticket;
    ticket.decode = {"decode-0", 1};
    ticket.generation = 1;
    ticket.prompt_tokens = 900;
    ticket.prompt_pages = 57;
    Send(StartRequested{1, 900, ticket});
  }

  void Send(const PlannerEvent& event) {
    actions_.clear();
    planner_.Handle(event, now_us_, actions_);
    ASSERT_TRUE(planner_.CheckInvariants().ok()) << planner_.CheckInvariants();
  }
  void Done(int stage, uint64_t number) {
    Send(StagePlanDone{stage, kEpoch, {number, kComputeUs, 0, {}}});
  }
  std::optional<FailChain> Failed() const {
    for (const PlannerAction& action : actions_) {
      if (const auto* fail = std::get_if<FailChain>(&action)) return *fail;
    }
    return std::nullopt;
  }

  int64_t now_us_ = 0;
  ChainPlanner planner_;
  std::vector<PlannerAction> actions_;
};

TEST_F(PlannerProgressTest, AStageThatNeverGetsItsInputFailsTheChain) {
  EXPECT_EQ(planner_.NextDeadlineUs(), kNeverUs) << "stage 0 computes as long as it takes";
  now_us_ = 60'000'000;
  Done(0, 1);
  const int64_t due_us = now_us_ + kGraceUs + 20 * kComputeUs;
  EXPECT_EQ(planner_.NextDeadlineUs(), due_us);
  now_us_ = due_us - 1;
  Send(Tick{});
  EXPECT_FALSE(Failed().has_value());
  now_us_ = due_us;
  Send(Tick{});
  ASSERT_TRUE(Failed().has_value());
  EXPECT_EQ(Failed()->stage, 1);
  EXPECT_EQ(Failed()->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Failed()->status.message()), HasSubstr("plan 1 "));
  Send(Tick{});
  EXPECT_FALSE(Failed().has_value()) << "once an epoch";
  EXPECT_EQ(planner_.NextDeadlineUs(), kNeverUs);
}

TEST_F(PlannerProgressTest, TheStageIsNamedThatWaitsAndNotThoseBehindIt) {
  Done(0, 1);
  Done(1, 1);
  Done(0, 2);
  now_us_ = kGraceUs;
  Done(1, 2);
  now_us_ = kGraceUs + 20 * kComputeUs;
  Send(Tick{});
  ASSERT_TRUE(Failed().has_value());
  EXPECT_EQ(Failed()->stage, 2);
}

TEST_F(PlannerProgressTest, AStagesTimeBeginsWhenItIsDoneWithThePlanBefore) {
  Done(0, 1);
  Done(0, 2);
  now_us_ = kGraceUs;
  Done(1, 1);
  EXPECT_EQ(planner_.NextDeadlineUs(), 2 * kGraceUs + 20 * kComputeUs);
  Done(2, 1);
  Done(1, 2);
  Done(2, 2);
  EXPECT_EQ(planner_.NextDeadlineUs(), kNeverUs) << "all is done that was begun";
}

// Seed 607,280 of the simulation: a loss behind a stage that had stood still for 0.7 s was noticed
// 15 s later.
TEST_F(PlannerProgressTest, AStageThatWasHeldUpGivesTheNextOneNoMoreTime) {
  Done(0, 1);
  now_us_ = 2'000'000;
  Send(StagePlanDone{1, kEpoch, {1, 1'900'000, 0, {}}});
  EXPECT_EQ(planner_.NextDeadlineUs(), now_us_ + kGraceUs + 20 * kComputeUs);
}

TEST_F(PlannerProgressTest, AReportThatIsNotHereYetSaysNothing) {
  Done(1, 1);
  EXPECT_EQ(planner_.NextDeadlineUs(), kGraceUs + 20 * kComputeUs) << "of the third stage";
}

TEST_F(PlannerProgressTest, TheChainFailsOnceWhereSeveralAreOverdue) {
  Done(0, 1);
  Done(0, 2);
  Done(1, 1);
  now_us_ = 10 * kGraceUs;
  Send(Tick{});
  EXPECT_EQ(actions_.size(), 1u);
  EXPECT_EQ(Failed()->stage, 1) << "the first of them";
}

// An abort is in every stage's plans, and one of them never says that it is done with the request.
TEST_F(PlannerProgressTest, AStageThatDoesNotCloseWhatIsOverFailsTheChain) {
  Send(AbortRequested{1, absl::CancelledError("the client has gone")});
  for (uint64_t number = 1; number <= 3; ++number) {
    for (int stage = 0; stage < 3; ++stage) Done(stage, number);
  }
  for (const int stage : {0, 2}) {
    Send(StageRequestClosed{stage, kEpoch, {1, absl::CancelledError("aborted"), 0, 0, 0}});
  }
  ASSERT_EQ(planner_.load().open, 1);
  const int64_t due_us = now_us_ + kCloseGraceUs;
  EXPECT_EQ(planner_.NextDeadlineUs(), due_us);
  now_us_ = due_us - 1;
  Send(Tick{});
  EXPECT_FALSE(Failed().has_value());
  now_us_ = due_us;
  Send(Tick{});
  ASSERT_TRUE(Failed().has_value());
  EXPECT_EQ(Failed()->stage, 1);
  EXPECT_EQ(Failed()->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Failed()->status.message()), HasSubstr("has not closed attempt 1 "));
  Send(Tick{});
  EXPECT_FALSE(Failed().has_value()) << "once an epoch";
}

TEST_F(PlannerProgressTest, AStageThatClosesWhatIsOverInTimeIsNotBlamed) {
  Send(AbortRequested{1, absl::CancelledError("the client has gone")});
  for (uint64_t number = 1; number <= 3; ++number) {
    for (int stage = 0; stage < 3; ++stage) Done(stage, number);
  }
  now_us_ += kCloseGraceUs - 1;
  for (int stage = 0; stage < 3; ++stage) {
    Send(StageRequestClosed{stage, kEpoch, {1, absl::CancelledError("aborted"), 0, 0, 0}});
  }
  EXPECT_EQ(planner_.load().open, 0);
  EXPECT_EQ(planner_.NextDeadlineUs(), kNeverUs);
}

TEST_F(PlannerProgressTest, TheNextEpochStartsAnew) {
  Done(0, 1);
  now_us_ = 10 * kGraceUs;
  Send(Tick{});
  ASSERT_TRUE(Failed().has_value());
  Send(ChainDown{absl::UnavailableError("a stage is lost")});
  EXPECT_EQ(planner_.NextDeadlineUs(), kNeverUs);
  Send(ChainUp{kEpoch + 1, 3, 64});
  Send(Tick{});
  EXPECT_FALSE(Failed().has_value());
  EXPECT_EQ(planner_.NextDeadlineUs(), kNeverUs);
  Start();
  Send(StagePlanDone{0, kEpoch + 1, {1, kComputeUs, 0, {}}});
  EXPECT_EQ(planner_.NextDeadlineUs(), now_us_ + kGraceUs + 20 * kComputeUs) << "and is watched";
}

}  // namespace
}  // namespace baton::prefill
