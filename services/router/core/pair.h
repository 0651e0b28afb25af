// What can take a request: a chain with a decode service, or a colocated chain with itself.
#ifndef SERVICES_ROUTER_CORE_PAIR_H_
#define SERVICES_ROUTER_CORE_PAIR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/types/instance.h"
#include "common/types/ticket.h"

namespace baton::router {

// A chain whose stages, with all of their ranks, are present and wired. Stage 0 takes its requests;
// of its ranks the first.
struct Chain {
  std::string chain_id;
  std::vector<KvWriter> stages;  // All processes by place; cover all layers.
  InstanceRef stage0;
  int64_t max_prompt_tokens = 0;  // That fit into every stage.
  int64_t capacity_tokens = 0;    // For all its prompts together: the smallest stage's.
  bool draining = false;

  bool Has(const InstanceRef& instance) const;
};

// A decode service is called by its stage 0's rank 0, whose slots are its own. A colocated chain is
// a pair with itself: stage 0 is in decode's place, and there are no followers and no writers.
struct Pair {
  Chain chain;
  InstanceRef decode;                       // Its first process.
  int64_t decode_capacity_tokens = 0;       // For all its requests together: the smallest one's.
  int64_t max_context_tokens = 0;           // For one request: prompt and continuation.
  int decode_slots = 0;                     // Its max_running_requests.
  int page_size = 1;                        // Tokens: what both sides give room in.
  std::vector<InstanceRef> followers = {};  // The decode service's others, by place.
  // Processes of the chain that hand KV over to it: every head of every layer goes once to each
  // rank that has it.
  std::vector<KvWriter> writers = {};
  // New tokens of a request for which the decode service holds pages from the beginning. 0: all.
  int reserved_tokens = 0;

  // Whether the decode service is, or has, this process.
  bool Decodes(const InstanceRef& instance) const;
  bool colocated() const { return decode == chain.stage0; }
};

// How much a pair takes; of one of its sides what is known of that.
struct PairLimits {
  int64_t max_prompt_tokens = 0;  // As Chain's and Pair's.
  int64_t chain_capacity_tokens = 0;
  int64_t decode_capacity_tokens = 0;
  int64_t max_context_tokens = 0;
  int decode_slots = 0;
  int page_size = 1;
  bool colocated = false;
  int reserved_tokens = 0;

  int64_t InPages(int64_t tokens) const { return (tokens + page_size - 1) / page_size * page_size; }
  // What a request takes of a decode service when it is admitted. What its text takes later is not
  // foreseen: few texts are as long as they may be.
  int64_t AtFirst(int64_t prompt_tokens, int64_t new_tokens) const {
    const bool whole = reserved_tokens == 0 || new_tokens < reserved_tokens;
    return InPages(prompt_tokens + (whole ? new_tokens : reserved_tokens));
  }
};
PairLimits LimitsOf(const Pair& pair);

// Tokens that may follow a prompt in one request of the pair; 0 or less: the prompt is too long.
int64_t OutputRoom(const Pair& pair, int64_t prompt_tokens);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_PAIR_H_
