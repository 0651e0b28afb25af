// What the policies share.
#ifndef SERVICES_ROUTER_CORE_POLICIES_LEAST_H_
#define SERVICES_ROUTER_CORE_POLICIES_LEAST_H_

#include <cstddef>
#include <span>
#include <tuple>

#include "services/router/core/policies/policy.h"

namespace baton::router {

// The index of the candidate for which `key` is the least; of equal ones the first.
template <typename Key>
size_t Least(std::span<const Candidate> candidates, Key key) {
  size_t best = 0;
  auto least = key(candidates[0]);
  for (size_t i = 1; i < candidates.size(); ++i) {
    auto other = key(candidates[i]);
    if (!(other < least)) continue;
    best = i;
    least = other;
  }
  return best;
}

// By load: who would not wait, who does not touch what has failed, fewer prompt tokens queued,
// fewer requests, longest unused.
inline auto LoadOf(const Candidate& candidate) {
  return std::tuple(candidate.full, candidate.beside, candidate.queued_tokens, candidate.requests,
                    candidate.chain_used, candidate.decode_used);
}

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_POLICIES_LEAST_H_
