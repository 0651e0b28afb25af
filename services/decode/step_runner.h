// The thread that computes: one decode step at a time through the executor, and a draw for every
// sequence of it.
#ifndef SERVICES_DECODE_STEP_RUNNER_H_
#define SERVICES_DECODE_STEP_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/event_loop.h"
#include "common/engine/executor.h"
#include "common/engine/row_sampler.h"
#include "common/engine/token_history.h"
#include "services/decode/core/decode_core.h"
#include "services/worker/token_sampler.h"

namespace baton::decode {

// How one sequence's tokens are drawn.
struct SequenceSampling {
  const worker::TokenSampler sampler;
  // With the prompt's tokens if the sampler needs them. The compute thread's from the first step
  // on: every step feeds the token before, so that none is missed.
  TokenHistory history;
};

class StepRunner {
 public:
  struct Job {
    RunStep step;
    // One for each sequence, in the same order; shared, since a request may end meanwhile.
    std::vector<std::shared_ptr<SequenceSampling>> samplings;
  };

  // `executor` is not owned. `on_finished` is called on this thread, once for each job.
  StepRunner(Executor* executor, std::function<void(StepFinished, int64_t compute_us)> on_finished);
  ~StepRunner();  // Ends after the job that runs.

  void Run(Job job);
  void Stop() { loop_.Stop(); }

  // When the step that runs began, on NowUs()'s clock; 0: none runs.
  int64_t running_since_us() const { return running_since_us_.load(std::memory_order_relaxed); }

 private:
  StepFinished Compute(const Job& job);

  Executor* const executor_;
  const std::function<void(StepFinished, int64_t)> on_finished_;
  RowSampler rows_;
  std::vector<float> logits_;  // [sequences, vocab]; kept, since it is large.
  std::atomic<int64_t> running_since_us_{0};
  EventLoop loop_;  // Last: its thread uses the rest.
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_STEP_RUNNER_H_
