// What a stage's shell knows of a request beside the core's plain plan.
#ifndef SERVICES_PREFILL_STAGE_PROMPT_CONTEXT_H_
#define SERVICES_PREFILL_STAGE_PROMPT_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/engine/sampling/token_sampler.h"
#include "common/tracing/trace_context.h"
#include "proto/baton/v1/common.pb.h"

namespace baton::prefill {

// Immutable and shared: a plan that is being computed keeps it alive whatever ends the request.
struct PromptContext {
  std::vector<int32_t> tokens;  // The whole prompt; after stage 0 only if LaterStagesNeedTokens.
  v1::SamplingParams sampling;  // As it goes on to the other stages.
  TokenSampler sampler;         // Used by the last stage.
  tracing::TraceContext trace;  // Stage 0's span for the request: the parent of the stages' spans.

  // The last stage looks at the prompt's tokens to penalise or report them.
  bool LaterStagesNeedTokens() const {
    return sampler.params().NeedsPrompt() || sampler.prompt_logprobs();
  }
};
using PromptContextPtr = std::shared_ptr<const PromptContext>;

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_PROMPT_CONTEXT_H_
