#include "common/engine/executors/threaded_executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/sync.h"
#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/executor.h"

namespace baton {
namespace {

constexpr int kVocab = 16;

// The test opens it; a wait for an event that never comes fails.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
  }
  bool Await() {
    MutexLock lock(&mutex_);
    return mutex_.AwaitFor(std::chrono::seconds(30),
                           [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_; });
  }

 private:
  Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

// One layer whose most probable next token is one more than the last one.
class CountingModel final : public StageModel {
 public:
  CountingModel() {
    config_.num_hidden_layers = 1;
    config_.vocab_size = kVocab;
    kv_.layer_end = 1;
  }
  const ModelConfig& config() const override { return config_; }
  const KvGeometry& kv() const override { return kv_; }
  KvMemory& kv_memory() override { return kv_memory_; }
  absl::Status Forward(const Batch& batch, const TensorView&, const TensorView&,
                       std::span<float> logits) override {
    submitted_us.push_back(batch.submitted_us);
    if (on_forward) on_forward();
    if (!status.ok()) return status;
    size_t row = 0;
    for (const SequenceSlice& slice : batch.slices) {
      std::vector<float> all(slice.tokens.size() * kVocab);
      for (size_t i = 0; i < slice.tokens.size(); ++i) {
        all[i * kVocab + static_cast<size_t>(slice.tokens[i] + 1)] = 20;
      }
      if (slice.on_logits != nullptr) slice.on_logits(0, all);
      if (slice.drawn != nullptr) asked.push_back(slice.draw);
      if (slice.drawn != nullptr) *slice.drawn = picks || draws ? slice.tokens.back() + 2 : -1;
      if (!slice.wants_logits) continue;
      std::copy_n(all.end() - kVocab, kVocab, &logits[kVocab * row++]);
    }
    return absl::OkStatus();
  }

  bool Draws(const RowDraw& draw) const override {
    return draws || (draw.scale == 0 && (picks || fails_to_pick));
  }

  bool begins() const override { return on_device; }
  // A device that computes at once, and tells it when the gate is open.
  absl::StatusOr<std::unique_ptr<BegunBatch>> Begin(const Batch& batch) override {
    if (!status.ok()) return status;
    std::vector<int32_t> fed;
    std::vector<int32_t*> cells;
    for (const SequenceSlice& slice : batch.slices) {
      if (slice.drawn == nullptr) return nullptr;
      fed.push_back(slice.follows.has_value() ? drawn_.at(static_cast<size_t>(*slice.follows))
                                              : slice.tokens.back());
      cells.push_back(slice.drawn);
    }
    drawn_.clear();
    for (const int32_t token : fed) drawn_.push_back(token + 2);
    begun.fetch_add(1);
    if (on_begin) on_begin();
    return std::make_unique<OnDevice>(gate, end_status, drawn_, std::move(cells));
  }

  bool on_device = false;
  Gate* gate = nullptr;  // Of the batches that begin from now on; null: open.
  absl::Status end_status;
  std::atomic<int> begun{0};
  std::function<void()> on_begin;
  bool picks = false;  // Two more than the last one, which tells who drew.
  bool draws = false;  // The same of any draw.
  std::vector<RowDraw> asked;
  bool fails_to_pick = false;
  std::function<void()> on_forward;
  absl::Status status;
  std::vector<int64_t> submitted_us;  // One for each step.

 private:
  class OnDevice final : public BegunBatch {
   public:
    OnDevice(Gate* gate, absl::Status status, std::vector<int32_t> drawn,
             std::vector<int32_t*> cells)
        : gate_(gate),
          status_(std::move(status)),
          drawn_(std::move(drawn)),
          cells_(std::move(cells)) {}
    absl::Status End() override {
      EXPECT_TRUE(gate_ == nullptr || gate_->Await());
      for (size_t i = 0; i < cells_.size(); ++i) *cells_[i] = drawn_[i];
      return status_;
    }

   private:
    Gate* const gate_;
    const absl::Status status_;
    const std::vector<int32_t> drawn_;
    const std::vector<int32_t*> cells_;
  };

  ModelConfig config_;
  KvGeometry kv_;
  HostKvMemory kv_memory_{kv_, {}};
  std::vector<int32_t> drawn_;  // By the last batch that was begun.
};

class ThreadedExecutorTest : public testing::Test {
 protected:
  explicit ThreadedExecutorTest(bool on_device = false) {
    auto model = std::make_unique<CountingModel>();
    model_ = model.get();
    model_->on_device = on_device;
    executor_ = std::make_unique<ThreadedExecutor>(std::move(model), "test.compute");
    greedy_.temperature = 0;
  }
  SequenceStep Sequence(std::span<const int32_t> tokens, std::optional<Draw> draw = {}) {
    SequenceStep sequence;
    sequence.tokens = tokens;
    sequence.token_count = static_cast<int>(tokens.size());
    sequence.draw = draw;
    return sequence;
  }
  StepResult Run(std::vector<SequenceStep> sequences) {
    StepResult result;
    Notification done;
    Step step;
    step.sequences = std::move(sequences);
    executor_->Submit(std::move(step), [&](StepResult told) {
      result = std::move(told);
      done.Notify();
    });
    done.WaitForNotification();
    return result;
  }

  CountingModel* model_ = nullptr;
  std::unique_ptr<ThreadedExecutor> executor_;
  SamplingParams greedy_;
};

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
  bool AwaitBegun(int count) {
    for (int i = 0; i < 30'000 && model_->begun < count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return model_->begun == count;
  }

  std::vector<std::vector<int32_t>> told_;  // Of each step, when Stop has returned.
  std::vector<absl::Status> statuses_;
  std::atomic<int> telling_{0};
};

TEST_F(BegunStepsTest, TheNextStepBeginsBeforeTheTokensThatItFeedsAreRead) {
  std::vector<int32_t> cells = {3, 5, 7};
  const auto all = std::span(cells);
  std::vector<Gate> gates(3);
  size_t next = 0;  // The computing thread's.
  model_->gate = gates.data();
  model_->on_begin = [&] { model_->gate = &gates[++next % gates.size()]; };
  Submit(StepOf(all));
  Submit(StepOf(all.last(2)));  // The first text has ended.
  Submit(StepOf(all));          // It goes on, as nothing else would: from what the host has.
  ASSERT_TRUE(AwaitBegun(2));
  EXPECT_NE(executor_->running_since_us(), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(model_->begun, kBegunBatches) << "a third one has to wait for the first one's end";
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
  Gate gate;
  model_->gate = &gate;
  Submit(StepOf(cells));
  Step by_host = StepOf(cells);
  by_host.sequences[0].draw->params = &told;
  Submit(std::move(by_host));
  Submit(StepOf(cells));
  ASSERT_TRUE(AwaitBegun(1));
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
