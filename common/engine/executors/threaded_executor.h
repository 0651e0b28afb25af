// The executor around a stage model. One thread, the compute queue, runs the steps in order and
// draws their tokens.
//
// A model on a device may begin a step while the one before is computed, with the tokens that this
// one draws: then the device need not wait for the host between two. Another thread waits for the
// ends of such steps and tells them. A step that the host takes part in waits for all before it.
#ifndef COMMON_ENGINE_EXECUTORS_THREADED_EXECUTOR_H_
#define COMMON_ENGINE_EXECUTORS_THREADED_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/event_loop.h"
#include "common/base/sync.h"
#include "common/engine/executor.h"
#include "common/engine/sampling/sampler.h"
#include "common/engine/stage_model.h"
#include "common/types/sampled_token.h"

namespace baton {

// Draws the tokens of a step, with the rows spread over the threads that compute.

// Used by the thread that calls the model. Allocates all of its memory in the constructor, except
// for the results.
class RowSampler {
 public:
  explicit RowSampler(StageModel* model);  // Not owned.

  // One result for each row, in order. An error concerns that row alone.
  std::vector<absl::StatusOr<SampledToken>> Draw(const std::vector<Sampler::Row>& rows);

  // For each of `tokens`: its log-probability in its row of `logits` [tokens, vocab], and the `top`
  // most probable tokens of that row.
  std::vector<absl::StatusOr<SampledToken>> Report(std::span<const float> logits,
                                                   std::span<const int32_t> tokens, int top);

 private:
  using Result = absl::StatusOr<SampledToken>;
  std::vector<Result> ForEach(size_t rows, const std::function<Result(Sampler&, size_t)>& row);

  StageModel* const model_;
  std::vector<Sampler> samplers_;  // One for each of the model's threads.
};

class ThreadedExecutor final : public Executor {
 public:
  // `failpoint` is hit at the start of each step, on the computing thread. An error fails the step.
  ThreadedExecutor(std::unique_ptr<StageModel> model, std::string failpoint);
  ~ThreadedExecutor() override { Stop(); }

  const ModelConfig& config() const override { return model_->config(); }
  const KvGeometry& kv() const override { return model_->kv(); }
  KvMemory& kv_memory() override { return model_->kv_memory(); }
  ElementType activation_type() const override { return model_->activation_type(); }
  int activation_columns() const override { return model_->activation_columns(); }
  absl::StatusOr<MemoryBuffer> AllocateActivations(size_t bytes) override {
    return model_->AllocateActivations(bytes);
  }
  void Submit(Step step, std::function<void(StepResult)> done) override;
  TensorRank tensor_rank() const override { return model_->tensor_rank(); }
  void JoinGroup(std::shared_ptr<Communicator> group,
                 const std::function<void(absl::Status)>& done) override;
  int64_t running_since_us() const override {
    return running_since_us_.load(std::memory_order_relaxed);
  }
  void Stop() override;

 private:
  // A step as the model takes it. What it points to stays where it is.
  struct Composed {
    Batch batch;
    std::vector<int32_t> drawn;  // By the model, of each sequence.
    std::vector<absl::StatusOr<std::vector<SampledToken>>> reported;
  };
  struct Begun {
    Composed composed;
    std::unique_ptr<BegunBatch> batch;
    int64_t begun_us = 0;
  };

  // `done` is called before it returns, or by `ends_`.
  void Run(const std::shared_ptr<const Step>& step, int64_t submitted_us,
           const std::function<void(StepResult)>& done);
  // Fails at once unless `status` is OK.
  StepResult RunAlone(const Step& step, int64_t submitted_us, absl::Status status);
  absl::Status Compose(const Step& step, int64_t submitted_us, Composed& composed);
  absl::Status Compute(const Step& step, int64_t submitted_us, StepResult& result);
  // nullptr if the model can't begin the step: it has to be computed when those before it have
  // ended.
  absl::StatusOr<std::shared_ptr<Begun>> Begin(const Step& step, int64_t submitted_us);
  // Makes slices follow the draws of the step that was begun before.
  void FollowDraws(const Step& step, Batch& batch) const;
  void End(const Step& step, Begun& begun, const std::function<void(StepResult)>& done);
  // Returns when at most `count` begun steps have not ended.
  void AwaitEnds(int count);
  // Appends to `told` the log-probabilities of the tokens that follow the rows of `logits`. `first`
  // is the index in the sequence of the first row's token.
  void Report(const PromptReport& report, int first, std::span<const float> logits,
              absl::StatusOr<std::vector<SampledToken>>& told);
  // The draw, if the model makes it (SequenceSlice::drawn).
  std::optional<RowDraw> ModelsDraw(const SequenceStep& sequence) const;
  // Room for the logits of `rows` draws.
  absl::StatusOr<std::span<float>> LogitsOf(size_t rows);
  void DrawTokens(const Step& step, const Batch& batch, std::span<const float> logits,
                  StepResult& result);

  const std::unique_ptr<StageModel> model_;
  const std::string failpoint_;
  std::optional<RowSampler> rows_;  // Only if the model returns logits.
  MemoryBuffer logits_;             // [draws, vocab]; kept, since it is large.
  // SequenceStep::drawn of the draws of the last step, if it was begun.
  std::vector<const int32_t*> begun_draws_;
  std::atomic<int64_t> running_since_us_{0};
  Mutex mutex_;
  int begun_ ABSL_GUARDED_BY(mutex_) = 0;  // Steps that have not ended.
  int64_t ended_us_ = 0;                   // When the last of them has; the thread of `ends_`.
  std::optional<EventLoop> ends_;          // Only if the model begins steps.
  EventLoop loop_;                         // Last: its thread uses the rest.
};

}  // namespace baton

#endif  // COMMON_ENGINE_EXECUTORS_THREADED_EXECUTOR_H_
