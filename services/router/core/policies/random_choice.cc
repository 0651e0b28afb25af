#include "services/router/core/policies/policy.h"

namespace baton::router {

size_t PickByRandom(std::span<const Candidate> candidates, Random& random) {
  return random.Below(candidates.size());
}

}  // namespace baton::router
