// Runs a decode step on the executor: one token fed and one drawn for every sequence.
#ifndef SERVICES_DECODE_STEP_RUNNER_H_
#define SERVICES_DECODE_STEP_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/engine/executor.h"
#include "common/engine/sampling/sampling_params.h"
#include "common/engine/sampling/token_sampler.h"
#include "services/decode/core/decode_core.h"

namespace baton::decode {

// How one sequence's tokens are drawn.
struct SequenceSampling {
  const TokenSampler sampler;
  // Holds the prompt's tokens if the sampler needs them. The executor owns it from the first step
  // on: every step feeds the token before, so none is missed.
  TokenHistory history;
  // What an earlier attempt has drawn, if the sampler needs it. The first step adds it to the
  // history, with the first token of this attempt.
  std::vector<int32_t> drawn = {};
};

class StepRunner {
 public:
  struct Job {
    RunStep step;
    // One for each sequence, in the same order; shared, since a request may end during the step.
    std::vector<std::shared_ptr<SequenceSampling>> samplings;
  };

  // `executor` is not owned. `on_finished` is called once for each job on one of the executor's
  // threads; after Stop, before Run returns.
  StepRunner(Executor* executor, std::function<void(StepFinished, int64_t compute_us)> on_finished);

  void Run(Job job);
  void Stop() { submissions_.Stop(); }  // Returns when no job runs.

 private:
  const std::function<void(StepFinished, int64_t)> on_finished_;
  Submissions submissions_;
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_STEP_RUNNER_H_
