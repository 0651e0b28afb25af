#include "common/engine/executors/threaded_executor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/engine/executors/threaded_executor_fixture.h"

namespace baton {
namespace {

TEST_F(ThreadedExecutorTest, ADeviceDrawsWhatTakesTheHighestLogitAsItIs) {
  model_->picks = true;
  SamplingParams told = greedy_;
  told.logprobs = true;
  SamplingParams warm;
  warm.top_k = 1;
  const std::vector<int32_t> tokens = {3};
  const StepResult result = Run({Sequence(tokens, Draw{&told}), Sequence(tokens, Draw{&greedy_}),
                                 Sequence(tokens), Sequence(tokens, Draw{&warm})});
  ASSERT_TRUE(result.status.ok()) << result.status;
  ASSERT_EQ(result.drawn.size(), 3u);
  EXPECT_EQ(result.drawn[0]->token, 4);
  EXPECT_EQ(result.drawn[1]->token, 5) << "the device's";
  EXPECT_EQ(result.drawn[2]->token, 4);
}

TEST_F(ThreadedExecutorTest, ADeviceDrawsByTheParametersWhatDependsOnTheRowAlone) {
  model_->draws = true;
  SamplingParams warm;
  warm.temperature = 0.5;
  warm.top_k = 3;
  warm.top_p = 0.9;
  warm.min_p = 0.25;
  SamplingParams later = warm;  // Not before the second token.
  later.min_tokens = 1;
  later.eos_token_ids = {1};
  SamplingParams biased = greedy_;
  biased.logit_bias = {{4, 1}};
  const std::vector<int32_t> tokens = {3};
  const StepResult result =
      Run({Sequence(tokens, Draw{&warm, 7, 0, nullptr, {}}), Sequence(tokens, Draw{&later, 7}),
           Sequence(tokens, Draw{&later, 7, 1, nullptr, {}}), Sequence(tokens, Draw{&biased})});
  ASSERT_TRUE(result.status.ok()) << result.status;
  ASSERT_EQ(result.drawn.size(), 4u);
  EXPECT_EQ(result.drawn[0]->token, 5) << "the device's";
  EXPECT_EQ(result.drawn[1]->token, 4);
  EXPECT_EQ(result.drawn[2]->token, 5);
  EXPECT_EQ(result.drawn[3]->token, 4);
  ASSERT_EQ(model_->asked.size(), 2u);
  const RowDraw& draw = model_->asked[0];
  EXPECT_NEAR(draw.scale, 2 / std::log(2.0), 1e-6);
  EXPECT_EQ(draw.top_k, 3);
  EXPECT_EQ(draw.top_p, 0.9);
  EXPECT_EQ(draw.least_weight, kernels::kUnitWeight / 4);
  EXPECT_GE(draw.uniform, 0);
  EXPECT_LT(draw.uniform, 1);
  EXPECT_NE(draw.uniform, model_->asked[1].uniform) << "of another position";
}

TEST_F(ThreadedExecutorTest, ALogitThatIsNotFiniteOnADeviceFailsItsRequestAlone) {
  model_->fails_to_pick = true;
  SamplingParams warm;
  warm.top_k = 1;
  const std::vector<int32_t> tokens = {3};
  const StepResult result = Run({Sequence(tokens, Draw{&greedy_}), Sequence(tokens, Draw{&warm})});
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.drawn[0].status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(result.drawn[1]->token, 4);
}

TEST_F(ThreadedExecutorTest, DrawsAndReportsOfThoseThatWantIt) {
  const std::vector<int32_t> first = {1, 2, 3};
  const std::vector<int32_t> second = {7};
  SequenceStep reported = Sequence(first, Draw{&greedy_, 1, 0, nullptr, {}});
  reported.report = PromptReport{std::span(first).subspan(1), 1};
  const StepResult result =
      Run({reported, Sequence(first), Sequence(second, Draw{&greedy_, 1, 0, nullptr, {}})});
  ASSERT_TRUE(result.status.ok()) << result.status;
  ASSERT_EQ(result.drawn.size(), 2u);
  EXPECT_EQ(result.drawn[0]->token, 4);
  EXPECT_EQ(result.drawn[1]->token, 8);
  ASSERT_EQ(result.reported.size(), 1u);
  ASSERT_EQ(result.reported[0]->size(), 2u);
  EXPECT_EQ((*result.reported[0])[0].token, 2);
  EXPECT_NEAR((*result.reported[0])[1].logprob, 0, 1e-3);
}

// Each step adds one token of a continuation, whichever sequence draws, so a penalty shows it.
TEST_F(ThreadedExecutorTest, HistoryHasThePromptAndEveryTokenThatWasFed) {
  SamplingParams params = greedy_;
  params.frequency_penalty = 2;
  params.repetition_penalty = 1.5;
  TokenHistory history;
  const std::vector<int32_t> prompt = {9, 5, 9};
  Run({Sequence(prompt, Draw{&params, 1, 0, &history, prompt})});
  EXPECT_EQ(history.prompt(), (std::vector<int32_t>{5, 9}));
  EXPECT_TRUE(history.counts().empty());
  const std::vector<int32_t> fed = {4};
  Run({Sequence(fed, Draw{&params, 1, 1, &history, {}})});
  Run({Sequence(fed, Draw{&params, 1, 2, &history, {}})});
  EXPECT_EQ(history.counts().at(4), 2);
}

TEST_F(ThreadedExecutorTest, AStepMayFeedWhatTheStepBeforeItDraws) {
  std::vector<int32_t> fed = {3, 7};
  const std::vector<int32_t> bad = {kVocab - 2};
  const auto step = [&](std::span<const int32_t> first, std::span<const int32_t> second) {
    Step made;
    made.sequences = {Sequence(first, Draw{&greedy_, 1, 0, nullptr, {}}),
                      Sequence(second, Draw{&greedy_, 1, 0, nullptr, {}})};
    made.sequences[0].drawn = fed.data();
    made.sequences[1].drawn = &fed[1];
    return made;
  };
  const std::span<const int32_t> cells = fed;
  std::vector<int32_t> told;
  Notification done;
  model_->fails_to_pick = true;  // As a device says that a logit is not finite: -1.
  executor_->Submit(step(cells.first(1), cells.last(1)), [&](const StepResult& result) {
    EXPECT_FALSE(result.drawn.at(0).ok());
    EXPECT_EQ(fed, (std::vector<int32_t>{3, 7}));
    model_->fails_to_pick = false;
  });
  executor_->Submit(step(cells.first(1), cells.last(1)), [](const StepResult&) {});
  executor_->Submit(step(cells.first(1), bad), [&](const StepResult& result) {
    for (const auto& token : result.drawn) told.push_back(token->token);
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(told, (std::vector<int32_t>{5, kVocab - 1}));
  EXPECT_EQ(fed, told);
}

TEST_F(ThreadedExecutorTest, AFailedStepSaysWhyAndTheNextOneRuns) {
  const std::vector<int32_t> tokens = {1};
  const auto step = [&] { return Run({Sequence(tokens, Draw{&greedy_, 1, 0, nullptr, {}})}); };
  model_->status = absl::InternalError("a library failed");
  EXPECT_EQ(step().status.message(), "a library failed");
  model_->status = absl::OkStatus();
  model_->on_forward = [] { throw std::bad_alloc(); };
  EXPECT_EQ(step().status.code(), absl::StatusCode::kResourceExhausted);
  model_->on_forward = nullptr;
  ASSERT_TRUE(ArmFailpoints("test.compute=error@1").ok());
  const StepResult injected = step();
  EXPECT_EQ(injected.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(injected.drawn.empty());
  ASSERT_TRUE(ArmFailpoints("").ok());
  EXPECT_EQ(step().drawn.at(0)->token, 2);
}

TEST_F(ThreadedExecutorTest, RefusesWhatIsNotWellFormed) {
  const std::vector<int32_t> tokens = {1, 2};
  SamplingParams penal = greedy_;
  penal.presence_penalty = 1;
  SequenceStep reported = Sequence(tokens);
  reported.report = PromptReport{};
  for (const SequenceStep& sequence :
       {Sequence(tokens, Draw{}), Sequence(tokens, Draw{&penal, 1, 0, nullptr, {}}),
        Sequence(tokens, Draw{&greedy_, 1, 1, nullptr, {}}), reported}) {
    EXPECT_EQ(Run({sequence}).status.code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(ThreadedExecutorTest, ModelsHearWhenAStepWasHandedOverNotWhenItsTurnCame) {
  const std::vector<int32_t> tokens = {1};
  Gate gate;
  model_->on_forward = [&gate] { EXPECT_TRUE(gate.Await()); };
  const int64_t before_us = NowUs();
  for (int i = 0; i < 2; ++i) {
    Step step;
    step.sequences = {Sequence(tokens)};
    executor_->Submit(std::move(step), [](const StepResult&) {});
  }
  const int64_t submitted_us = NowUs();
  while (NowUs() == submitted_us) std::this_thread::yield();
  gate.Open();
  executor_->Stop();
  ASSERT_EQ(model_->submitted_us.size(), 2u);
  for (const int64_t told_us : model_->submitted_us) {
    EXPECT_GE(told_us, before_us);
    EXPECT_LE(told_us, submitted_us);
  }
}

TEST_F(ThreadedExecutorTest, StepsRunInOrderAndEndBeforeStopReturns) {
  std::vector<int> order;  // The computing thread's until Stop has returned.
  const std::vector<int32_t> tokens = {1};
  const auto submit = [&](int number) {
    Step step;
    step.sequences = {Sequence(tokens)};
    executor_->Submit(std::move(step), [&order, number](const StepResult& result) {
      EXPECT_TRUE(result.status.ok());
      order.push_back(number);
    });
  };
  Notification go;
  model_->on_forward = [&] { go.WaitForNotification(); };
  for (int i = 0; i < 5; ++i) submit(i);
  go.Notify();
  executor_->Stop();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(executor_->running_since_us(), 0);
  const StepResult late = Run({Sequence(tokens)});
  EXPECT_EQ(late.status.code(), absl::StatusCode::kCancelled);
}

// The step alone keeps it while the model computes and until `done` has returned; then nothing
// does.
TEST_F(ThreadedExecutorTest, WhatAStepPointsToLivesUntilItsEndIsTold) {
  auto kept = std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{3});
  const std::weak_ptr<const void> watch = kept;
  Notification submitted;
  model_->on_forward = [&] {
    submitted.WaitForNotification();
    EXPECT_FALSE(watch.expired()) << "while it is computed";
  };
  Step step;
  step.sequences = {Sequence(*kept)};
  step.keeps = std::move(kept);
  bool told = false;
  executor_->Submit(std::move(step), [&](const StepResult&) {
    EXPECT_FALSE(watch.expired()) << "while its end is told";
    told = true;
  });
  submitted.Notify();
  executor_->Stop();
  EXPECT_TRUE(told);
  EXPECT_TRUE(watch.expired());
}

// One user leaves while a step of another one is under way.
TEST_F(ThreadedExecutorTest, AUserWaitsForItsOwnStepsAlone) {
  const std::vector<int32_t> tokens = {1};
  const auto step = [&] {
    Step made;
    made.sequences = {Sequence(tokens)};
    return made;
  };
  constexpr int kLeaving = 3;
  int computed = 0;  // The computing thread's.
  Gate has_left;
  model_->on_forward = [&] {
    const bool may_end = ++computed <= kLeaving || has_left.Await();
    EXPECT_TRUE(may_end) << "who leaves waits for others";
  };
  int ended = 0;
  Notification stayed;
  Submissions staying(executor_.get());
  {
    Submissions leaving(executor_.get());
    for (int i = 0; i < kLeaving; ++i) leaving.Submit(step(), [&](const StepResult&) { ++ended; });
    staying.Submit(step(), [&](const StepResult& result) {
      EXPECT_TRUE(result.status.ok());
      stayed.Notify();
    });
    leaving.Stop();
    EXPECT_EQ(ended, kLeaving);
    EXPECT_FALSE(stayed.HasBeenNotified());
    leaving.Submit(step(), [&](const StepResult& result) {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kCancelled);
      ++ended;
    });
    EXPECT_EQ(ended, kLeaving + 1) << "within the call";
  }
  has_left.Open();
  stayed.WaitForNotification();
}

}  // namespace
}  // namespace baton
