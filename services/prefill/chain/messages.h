// proto/baton/v1/prefill.proto to and from the cores' plain values. What comes from the wire is
// checked here for form and range; order, gaps and duplicates are the cores' matter. Errors are
// INVALID_ARGUMENT that name the field.
#ifndef SERVICES_PREFILL_CHAIN_MESSAGES_H_
#define SERVICES_PREFILL_CHAIN_MESSAGES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/sampling/token_sampler.h"
#include "common/types/limits.h"
#include "common/types/ticket.h"
#include "proto/baton/v1/prefill.pb.h"
#include "services/prefill/core/chain_planner.h"
#include "services/prefill/core/plan.h"
#include "services/prefill/stage/stage_shell.h"

namespace baton::prefill {

inline constexpr int kMaxPlanEntries = 4096;  // Items, opens and aborts of one plan, each.

struct PlanBounds {
  int page_count = 0;
  int max_plan_tokens = 0;
  int max_context_tokens = 0;
  int vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  int layers = 0;                      // The model's.
  int kv_heads = 1;                    // The model's.
  int tensor_ranks = 1;                // Ranks in each stage.
  bool embeds = false;                 // A rank of stage 0: needs every prompt's tokens.
  bool draws = true;                   // Draws tokens: the last stage's rank 0.
  Constraints* constraints = nullptr;  // For what draws; null: texts can't be constrained.

  absl::StatusOr<TokenSampler> SamplerOf(const v1::SamplingParams& sampling) const {
    return draws ? TokenSampler::Create(sampling, eos_token_ids, vocab_size, constraints)
                 : TokenSampler::CreateSilent(sampling, eos_token_ids, vocab_size);
  }
};

struct Start {
  uint64_t attempt_id = 0;
  PromptContextPtr prompt;
  std::optional<Ticket> ticket;        // None: the chain is to decode it.
  std::vector<KvWriter> writers = {};  // Who read the prompt; empty: the chain does.
  int64_t timeout_ms = 0;
  std::string cache_salt;
  int priority = 0;
  int64_t head_start_us = 0;
};

// `trace` is what the stages' spans of the request are below.
absl::StatusOr<Start> FromProto(const v1::StartRequest& proto, const PlanBounds& bounds,
                                const tracing::TraceContext& trace);

// For members of a stage that embeds tokens, or does not.
v1::Plan ToProto(const PlanWithContexts& plan, bool embeds);
absl::StatusOr<PlanWithContexts> FromProto(const v1::Plan& proto, const PlanBounds& bounds);

v1::MeasuredCost ToProto(const KnownCost& known);
absl::StatusOr<KnownCost> FromProto(const v1::MeasuredCost& proto);

v1::PromptToken ToProto(const SampledToken& token);
v1::PlanDone ToProto(const PlanDone& done);
absl::StatusOr<PlanDone> FromProto(const v1::PlanDone& proto);

v1::RequestClosed ToProto(const RequestClosed& closed);
absl::StatusOr<RequestClosed> FromProto(const v1::RequestClosed& proto);

// What came of compiling.
v1::StructureCompiled ToProto(uint64_t attempt_id, const absl::Status& status);
absl::StatusOr<absl::Status> FromProto(const v1::StructureCompiled& proto);

v1::StartResponse ToProto(const PrefillOutcome& outcome);

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CHAIN_MESSAGES_H_
