// The thread that computes: runs one plan at a time through the executor and, on the last stage,
// samples the first token of every prompt that ends in it.
#ifndef SERVICES_PREFILL_STAGE_EXECUTOR_THREAD_H_
#define SERVICES_PREFILL_STAGE_EXECUTOR_THREAD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/event_loop.h"
#include "common/engine/executor.h"
#include "common/engine/row_sampler.h"
#include "services/prefill/core/stage.h"
#include "services/prefill/stage/activation_channel.h"
#include "services/prefill/stage/prompt_context.h"

namespace baton::prefill {

struct ComputeJob {
  struct Item {
    PromptContextPtr prompt;
    uint64_t attempt_id = 0;
    int token_begin = 0;
    int token_count = 0;
    bool final = false;
    std::vector<int> pages;
  };
  uint64_t epoch = 0;
  uint64_t number = 0;
  std::vector<Item> items;
  ActivationBuffers buffers;
};

class ExecutorThread {
 public:
  // `executor` is not owned. `on_event` is called on this thread with one ComputeFinished per job.
  ExecutorThread(Executor* executor, std::function<void(StageEvent)> on_event);
  ~ExecutorThread();  // Ends after the job that runs.

  void Run(ComputeJob job);
  void Stop() { loop_.Stop(); }

  // When the job that runs began, on NowUs()'s clock; 0: none runs.
  int64_t running_since_us() const { return running_since_us_.load(std::memory_order_relaxed); }

 private:
  ComputeFinished Compute(const ComputeJob& job);
  std::vector<absl::StatusOr<SampledToken>> DrawFirstTokens(const ComputeJob& job);
  // Adds what `logits`, of the item's tokens from `first` on, say of the tokens after them.
  void Report(const ComputeJob::Item& item, int first, std::span<const float> logits,
              ComputeFinished::Prompt& prompt);

  Executor* const executor_;
  const std::function<void(StageEvent)> on_event_;
  std::optional<RowSampler> rows_;  // On the last stage.
  std::vector<float> logits_;
  std::atomic<int64_t> running_since_us_{0};
  EventLoop loop_;  // Last: its thread uses the rest.
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_EXECUTOR_THREAD_H_
