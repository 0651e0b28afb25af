// Steps that a model begins while the one before is computed on a device.
#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "common/engine/executors/threaded_executor_fixture.h"

namespace baton {
namespace {

// A model that begins steps and draws their tokens.
class BegunStepsTest : public ThreadedExecutorTest {
 protected:
  BegunStepsTest() : ThreadedExecutorTest(/*on_device=*/true) { model_->picks = true; }

  // Feeds each cell's token and draws the next one into it.
  Step StepOf(std::span<int32_t> cells) {
    Step step;
    for (int32_t& cell : cells) {
      step.sequences.push_back(
          Sequence(std::span<const int32_t>(&cell, 1), Draw{&greedy_, 1, 0, nullptr, {}}));
      step.sequences.back().drawn = &cell;
    }
    return step;
  }
  void Submit(Step step) {
    executor_->Submit(std::move(step), [this](const StepResult& result) {
      const int before = telling_.fetch_add(1);
      EXPECT_EQ(before, 0) << "two ends are told at once";
      std::vector<int32_t> tokens;
      for (const auto& token : result.drawn) tokens.push_back(token.ok() ? token->token : -1);
      told_.push_back(tokens);
      statuses_.push_back(result.status);
      telling_.fetch_sub(1);
    });
  }

  // Each step's, complete when Stop has returned.
  std::vector<std::vector<int32_t>> told_;
  std::vector<absl::Status> statuses_;
  std::atomic<int> telling_{0};
};

TEST_F(BegunStepsTest, TheNextStepBeginsBeforeTheTokensThatItFeedsAreRead) {
  std::vector<int32_t> cells = {3, 5, 7};
  const auto all = std::span(cells);
  std::vector<Gate> gates(3);
  size_t next = 0;  // The computing thread's.
  model_->gate = gates.data();
  Gate second;
  model_->on_begin = [&] {
    if (model_->begun == 2) second.Open();
    model_->gate = &gates[++next % gates.size()];
  };
  Submit(StepOf(all));
  Submit(StepOf(all.last(2)));  // The first text has ended.
  Submit(StepOf(all));          // It goes on, as nothing else would: from what the host has.
  ASSERT_TRUE(second.Await());
  EXPECT_NE(executor_->running_since_us(), 0);
  EXPECT_EQ(cells, (std::vector<int32_t>{3, 5, 7})) << "none has ended";
  for (Gate& gate : gates) gate.Open();
  executor_->Stop();
  EXPECT_EQ(told_, (std::vector<std::vector<int32_t>>{{5, 7, 9}, {9, 11}, {7, 11, 13}}));
  EXPECT_EQ(cells, told_.back());
  EXPECT_EQ(executor_->running_since_us(), 0);
}

TEST_F(BegunStepsTest, AStepThatTheHostTakesPartInWaitsForThoseBefore) {
  std::vector<int32_t> cells = {3};
  SamplingParams told = greedy_;
  told.logprobs = true;  // The host draws.
  Gate first;
  Gate gate;
  model_->on_begin = [&] { first.Open(); };
  model_->gate = &gate;
  Submit(StepOf(cells));
  Step by_host = StepOf(cells);
  by_host.sequences[0].draw->params = &told;
  Submit(std::move(by_host));
  Submit(StepOf(cells));
  ASSERT_TRUE(first.Await());
  EXPECT_TRUE(model_->submitted_us.empty()) << "computed too soon";
  gate.Open();
  executor_->Stop();
  EXPECT_EQ(told_, (std::vector<std::vector<int32_t>>{{5}, {6}, {8}}));
  EXPECT_EQ(model_->submitted_us.size(), 1u);
}

TEST_F(BegunStepsTest, FailuresAreToldInTheirTurnAndTheNextStepRuns) {
  std::vector<int32_t> cells = {3};
  model_->on_begin = [this] {
    const int number = model_->begun;
    model_->end_status = number == 1 ? absl::InternalError("at its end") : absl::OkStatus();
    if (number == 3) model_->status = absl::ResourceExhaustedError("at its beginning");
    if (number == 2) throw std::bad_alloc();
  };
  for (int i = 0; i < 4; ++i) Submit(StepOf(cells));
  executor_->Stop();
  ASSERT_EQ(statuses_.size(), 4u);
  EXPECT_EQ(statuses_[0].message(), "at its end");
  EXPECT_TRUE(told_[0].empty());
  EXPECT_EQ(statuses_[1].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(statuses_[2].ok()) << statuses_[2];
  EXPECT_EQ(statuses_[3].message(), "at its beginning");
}

TEST_F(BegunStepsTest, WhatIsNotWellFormedIsRefusedInItsTurn) {
  std::vector<int32_t> cells = {3};
  Submit(StepOf(cells));
  Step bad = StepOf(cells);
  bad.sequences[0].draw = Draw{};
  Submit(std::move(bad));
  Submit(StepOf(cells));
  executor_->Stop();
  ASSERT_EQ(statuses_.size(), 3u);
  EXPECT_TRUE(statuses_[0].ok()) << statuses_[0];
  EXPECT_EQ(statuses_[1].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(told_[2], (std::vector<int32_t>{7}));
}

}  // namespace
}  // namespace baton
