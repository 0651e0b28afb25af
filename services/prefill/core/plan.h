// What travels down a chain: numbered, immutable plans and what stages answer. Plain values, the
// same as proto/baton/v1/prefill.proto without protobuf.
#ifndef SERVICES_PREFILL_CORE_PLAN_H_
#define SERVICES_PREFILL_CORE_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/sampled_token.h"
#include "common/types/ticket.h"

namespace baton::prefill {

// A request's entry into the chain, carried by the plan of its first item.
struct PlanOpen {
  uint64_t attempt_id = 0;
  // Where the prompt's KV goes. Without one the chain decodes the request, and sends no KV.
  std::optional<Ticket> ticket;
  // The chain's, for the whole prompt and the first tokens that the chain decodes; the same ids on
  // every stage.
  std::vector<int> pages;
  int decoded_prompt_tokens = 0;  // Without a ticket, which says them.
  // The first tokens to read whose KV is in the first pages already: whole pages, and not all. Or
  // all of a prompt that others have read: it begins with a decode step (adopted()).
  int cached_tokens = 0;
  // What the chain had drawn of a request that was retracted. It is read again behind the prompt.
  std::vector<int32_t> drawn = {};

  int prompt_tokens() const { return ticket ? ticket->prompt_tokens : decoded_prompt_tokens; }
  // In chunks, before the first decode step.
  int read_tokens() const { return prompt_tokens() + static_cast<int>(drawn.size()); }
  bool adopted() const { return !ticket.has_value() && cached_tokens == read_tokens(); }
};

// Feeds what the plan before draws of the request, which is not known yet. In a chain of one
// process alone: only who draws can feed it.
constexpr int32_t kTokenAhead = -1;

// A row of a plan: tokens [token_begin, token_begin + token_count) of one request. Of what is read
// they are a chunk, which begins on a page, so that it covers whole pages but for the end. Behind
// that it is one token, that the chain has drawn: a decode step.
struct PlanItem {
  uint64_t attempt_id = 0;
  int token_begin = 0;
  int token_count = 0;
  bool final = false;  // The prompt ends here, and with it the stages' work; only with a ticket.
  bool draws = false;  // Without a ticket: the next token is drawn, and the chain decodes it.
  int32_t token = 0;   // A decode step's: the one to feed, or kTokenAhead.
  int new_page = -1;   // A decode step's: the request has this page, too, from now on. -1: none.
};

struct Plan {
  uint64_t epoch = 0;
  uint64_t number = 0;  // From 1, without a gap.
  std::vector<PlanOpen> opens;
  std::vector<PlanItem> items;  // At most one per request.
  // Applied before the items; an aborted request has no item here. What the chain decodes ends so.
  std::vector<uint64_t> aborts;

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

// What came of an item that draws. An error ends this request alone.
struct DrawnToken {
  uint64_t attempt_id = 0;
  absl::StatusOr<SampledToken> token;
};

struct PlanDone {
  uint64_t number = 0;
  int64_t compute_us = 0;
  int64_t wait_us = 0;  // Idle with the plan at hand: for its input or for an output buffer.
  std::vector<PromptTokens> prompt_tokens;  // From the last stage, of prompts that want them.
  std::vector<DrawnToken> drawn;            // From the last stage, for the plan's items that draw.
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
