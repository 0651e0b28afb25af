// How one pair is picked among those that may take a request. A policy is a pure function over
// candidates: what it knows of them and its random numbers come from outside. Pairing sees to
// the rest: which pairs the request fits, which have room, which have failed it.
#ifndef SERVICES_ROUTER_CORE_POLICIES_POLICY_H_
#define SERVICES_ROUTER_CORE_POLICIES_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"

namespace baton::router {

enum class Policy {
  kCost,
  kLeastLoad,
  kRoundRobin,
  kRandom,
  kPowerOfTwo,
  kCacheAware,
  kConsistentHash,
  kLengthBuckets,
};

// As --load-balance-policy has it, whose values were checked.
Policy ParsePolicy(const std::string& name);

const char* PolicyName(Policy policy);

// One pair that has room for the request.
struct Candidate {
  size_t chain = 0;   // Slots of the roster.
  size_t decode = 0;  // A colocated chain's own slot.
  // The decode service has no pages or slots left, by all that is known: the request would wait.
  bool full = false;
  // The request failed on the other side of this pair while it was with one of its two.
  bool beside = false;
  int cached_tokens = 0;       // The prompt's, as predicted.
  int64_t queued_tokens = 0;   // Prompts', on the chain.
  int64_t chain_requests = 0;  // On the chain, not yet through.
  int64_t requests = 0;        // On the decode service.
  int decode_slots = 1;
  uint64_t chain_used = 0;  // When it was given a request last: larger is later.
  uint64_t decode_used = 0;
  uint64_t ring_distance = 0;  // From the request's key to the chain; 0 for all without a key.
  double place = 0;            // The chain's among all, by name: from 0 to 1.
  // Predicted times, microseconds.
  double queue_us = 0;    // What the chain has before the request.
  double prompt_us = 0;   // What is not cached of the prompt.
  double exposed_us = 0;  // From the end of the prompt to the first token.
  double wait_us = 0;     // For pages or a slot of the decode service.
  double token_us = 0;    // Between two tokens of the answer.
};

struct Asked {
  int prompt_tokens = 0;
  bool has_key = false;     // ring_distance means something.
  double length_place = 0;  // Share of recent prompt tokens in prompts shorter than this one.
};

// All that a choice went by.
struct Considered {
  Asked asked;
  std::vector<Candidate> candidates;
  std::vector<std::pair<std::string, std::string>> names;  // Chain and decode of each.
  size_t picked = 0;
};

// Each returns the index of the one it picks; there is at least one candidate. Of equal ones it is
// the one that was used longest ago.
size_t PickByCost(std::span<const Candidate> candidates, const Asked& asked);
size_t PickByLeastLoad(std::span<const Candidate> candidates);
size_t PickByRoundRobin(std::span<const Candidate> candidates);
size_t PickByRandom(std::span<const Candidate> candidates, Random& random);
size_t PickByPowerOfTwo(std::span<const Candidate> candidates, Random& random);
size_t PickByCacheAware(std::span<const Candidate> candidates, const Asked& asked);
size_t PickByConsistentHash(std::span<const Candidate> candidates, const Asked& asked);
size_t PickByLengthBuckets(std::span<const Candidate> candidates, const Asked& asked);

size_t Pick(Policy policy, std::span<const Candidate> candidates, const Asked& asked,
            Random& random);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_POLICIES_POLICY_H_
