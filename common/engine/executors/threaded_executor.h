// The executor around a blocking stage model. One thread, the compute queue, runs the steps in
// order and draws their tokens.
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

#include "absl/status/statusor.h"
#include "common/base/event_loop.h"
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
  void Stop() override { loop_.Stop(); }

 private:
  StepResult Run(const Step& step, int64_t submitted_us);
  absl::Status Compute(const Step& step, int64_t submitted_us, StepResult& result);
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
  std::atomic<int64_t> running_since_us_{0};
  EventLoop loop_;  // Last: its thread uses the rest.
};

}  // namespace baton

#endif  // COMMON_ENGINE_EXECUTORS_THREADED_EXECUTOR_H_
