// What travels down a chain: numbered, immutable plans and what stages answer. Plain values, the
// same as proto/baton/v1/prefill.proto without protobuf.
#ifndef SERVICES_PREFILL_CORE_PLAN_H_
#define SERVICES_PREFILL_CORE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/types/sampled_token.h"
#include "common/types/ticket.h"

namespace baton::prefill {

// A request's entry into the chain, carried by the plan of its first chunk.
struct PlanOpen {
  uint64_t attempt_id = 0;
  Ticket ticket;
  std::vector<int> pages;  // The chain's, for the whole prompt; the same ids on every stage.
};

// Tokens [token_begin, token_begin + token_count) of one prompt. token_begin is a multiple of the
// page size, so that a chunk covers whole pages but for the end of the prompt.
struct PlanItem {
  uint64_t attempt_id = 0;
  int token_begin = 0;
  int token_count = 0;
  bool final = false;
};

struct Plan {
  uint64_t epoch = 0;
  uint64_t number = 0;  // From 1, without a gap.
  std::vector<PlanOpen> opens;
  std::vector<PlanItem> items;   // At most one per request.
  std::vector<uint64_t> aborts;  // Applied before the items; an aborted request has no item here.

  int TokenCount() const {
    int tokens = 0;
    for (const PlanItem& item : items) tokens += item.token_count;
    return tokens;
  }
};

// Log-probabilities of a run of one prompt's tokens.
struct PromptTokens {
  uint64_t attempt_id = 0;
  int first = 0;  // Position of the first one; never 0, before which nothing stands.
  std::vector<SampledToken> tokens;
};

struct PlanDone {
  uint64_t number = 0;
  int64_t compute_us = 0;
  int64_t wait_us = 0;  // Idle with the plan at hand: for its input or for an output buffer.
  std::vector<PromptTokens> prompt_tokens;  // From the last stage, of prompts that want them.
};

// A stage sends nothing of the request any more; a failed one may still have rows to compute.
struct RequestClosed {
  uint64_t attempt_id = 0;
  absl::Status status;  // OK: every chunk and the commit were sent.
  int64_t kv_bytes = 0;
  int64_t kv_transfer_us = 0;
  int64_t kv_exposed_us = 0;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_PLAN_H_
