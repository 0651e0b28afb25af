// The executor around a blocking stage model. One thread, the compute queue, runs the steps in
// order and draws their tokens.
#ifndef COMMON_ENGINE_EXECUTORS_THREADED_EXECUTOR_H_
#define COMMON_ENGINE_EXECUTORS_THREADED_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/event_loop.h"
#include "common/engine/executor.h"
#include "common/engine/executors/row_sampler.h"
#include "common/engine/stage_model.h"

namespace baton {

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
  void DrawTokens(const Step& step, StepResult& result);

  const std::unique_ptr<StageModel> model_;
  const std::string failpoint_;
  std::optional<RowSampler> rows_;  // Only if the model returns logits.
  std::vector<float> logits_;       // [draws, vocab]; kept, since it is large.
  std::atomic<int64_t> running_since_us_{0};
  EventLoop loop_;  // Last: its thread uses the rest.
};

}  // namespace baton

#endif  // COMMON_ENGINE_EXECUTORS_THREADED_EXECUTOR_H_
