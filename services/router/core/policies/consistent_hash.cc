// The chain that the request's key falls to; the next one by hash while that one has no room.
#include <tuple>

#include "services/router/core/policies/least.h"

namespace baton::router {

size_t PickByConsistentHash(std::span<const Candidate> candidates, const Asked& asked) {
  if (!asked.has_key) return PickByLeastLoad(candidates);
  return Least(candidates, [](const Candidate& candidate) {
    return std::tuple(candidate.ring_distance, LoadOf(candidate));
  });
}

}  // namespace baton::router
