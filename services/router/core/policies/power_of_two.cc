// The less loaded of two random ones: nearly as even as the least loaded of all, and routers that
// know nothing of one another don't all run to the same one.
#include <algorithm>

#include "services/router/core/policies/least.h"

namespace baton::router {

size_t PickByPowerOfTwo(std::span<const Candidate> candidates, Random& random) {
  const size_t one = random.Below(candidates.size());
  if (candidates.size() == 1) return one;
  size_t other = random.Below(candidates.size() - 1);
  other += other >= one ? 1 : 0;
  return LoadOf(candidates[other]) < LoadOf(candidates[one]) ? other : one;
}

}  // namespace baton::router
