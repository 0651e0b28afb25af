// A plan on its way through the executor: its chunks computed and, on the last stage, the first
// token drawn of every prompt that ends in it.
#ifndef SERVICES_PREFILL_STAGE_PLAN_COMPUTER_H_
#define SERVICES_PREFILL_STAGE_PLAN_COMPUTER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "common/engine/executor.h"
#include "common/engine/sampling/sampling_params.h"
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
    TokenHistory history = {};  // The executor's.
  };
  uint64_t epoch = 0;
  uint64_t number = 0;
  std::vector<Item> items;
  ActivationBuffers buffers;
};

class PlanComputer {
 public:
  // `executor` is not owned. `on_event` is called on a thread of the executor's with one
  // ComputeFinished per job; after Stop within Run.
  PlanComputer(Executor* executor, std::function<void(StageEvent)> on_event);

  void Run(ComputeJob job);
  void Stop() { submissions_.Stop(); }  // Returns when no job runs.

 private:
  SequenceStep StepOf(ComputeJob::Item& item) const;

  Executor* const executor_;
  const std::function<void(StageEvent)> on_event_;
  Submissions submissions_;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_PLAN_COMPUTER_H_
