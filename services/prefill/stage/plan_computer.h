// A plan on its way through the executor: its items computed and, on the last stage, a token drawn
// for every prompt that ends in it and every decode step.
#ifndef SERVICES_PREFILL_STAGE_PLAN_COMPUTER_H_
#define SERVICES_PREFILL_STAGE_PLAN_COMPUTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/engine/executor.h"
#include "common/engine/sampling/sampling_params.h"
#include "common/engine/sampling/token_sampler.h"
#include "common/tracing/trace_context.h"
#include "proto/baton/v1/common.pb.h"
#include "services/prefill/core/stage.h"
#include "services/prefill/stage/activation_channel.h"

namespace baton::prefill {

// What a stage's shell knows of a request beside the core's plain plan.

// Immutable but for the history, and shared: a plan that is being computed keeps it alive whatever
// ends the request.
struct PromptContext {
  // The whole prompt, and behind it what was drawn before the request was retracted. After stage 0
  // only if LaterStagesNeedTokens.
  std::vector<int32_t> tokens;
  v1::SamplingParams sampling;  // As it goes on to the other stages.
  TokenSampler sampler;         // Used by the last stage.
  tracing::TraceContext trace;  // Stage 0's span for the request: the parent of the stages' spans.
  mutable TokenHistory history = {};  // The executor's: what it has drawn,
  mutable int32_t last_drawn = 0;     // and the last of it.
  std::vector<int32_t> drawn = {};    // Before it was retracted: the last ones of `tokens`.

  // The last stage looks at the prompt's tokens to penalise or report them, and at what an earlier
  // attempt has drawn.
  bool LaterStagesNeedTokens() const {
    return sampler.params().NeedsPrompt() || sampler.prompt_logprobs() ||
           sampler.drawn_tokens() > 0;
  }
};
using PromptContextPtr = std::shared_ptr<const PromptContext>;

// The context of a request that was retracted when it had `drawn` these, in order.
PromptContextPtr Resumed(const PromptContext& first, const std::vector<int32_t>& drawn);

struct ComputeJob {
  struct Item {
    PromptContextPtr prompt;
    RunCompute::Item run;
    std::vector<int32_t> adopted = {};  // run.adopts: what was drawn before, if the draw may look.

    bool decodes() const { return run.decodes; }
    bool reports() const {
      return !decodes() && prompt->drawn.empty() && prompt->sampler.prompt_logprobs();
    }
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
  SequenceStep StepOf(const ComputeJob::Item& item) const;

  Executor* const executor_;
  const std::function<void(StageEvent)> on_event_;
  Submissions submissions_;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_PLAN_COMPUTER_H_
