// A model that counts, and the executor around it, for ThreadedExecutor's tests.
#ifndef COMMON_ENGINE_EXECUTORS_THREADED_EXECUTOR_FIXTURE_H_
#define COMMON_ENGINE_EXECUTORS_THREADED_EXECUTOR_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/executor.h"
#include "common/engine/executors/threaded_executor.h"
#include "common/engine/stage_model.h"

namespace baton {

inline constexpr int kVocab = 16;

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
    EXPECT_LT(begun - ended, kBegunBatches) << "begun before those before it have ended";
    ++begun;
    if (on_begin) on_begin();
    return std::make_unique<OnDevice>(*this, std::move(cells));
  }

  bool on_device = false;
  Gate* gate = nullptr;  // Batches that begin from now on end when it opens; null: at once.
  absl::Status end_status;
  int begun = 0;
  std::atomic<int> ended{0};
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
    OnDevice(CountingModel& model, std::vector<int32_t*> cells)
        : gate_(model.gate),
          status_(model.end_status),
          drawn_(model.drawn_),
          cells_(std::move(cells)),
          ended_(model.ended) {}
    absl::Status End() override {
      EXPECT_TRUE(gate_ == nullptr || gate_->Await());
      for (size_t i = 0; i < cells_.size(); ++i) *cells_[i] = drawn_[i];
      ++ended_;
      return status_;
    }

   private:
    Gate* const gate_;
    const absl::Status status_;
    const std::vector<int32_t> drawn_;
    const std::vector<int32_t*> cells_;
    std::atomic<int>& ended_;
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

}  // namespace baton

#endif  // COMMON_ENGINE_EXECUTORS_THREADED_EXECUTOR_FIXTURE_H_
