// Prompts of like length to the same chains, so that short ones don't stand behind long ones: the
// chains stand in a row, each has an equal share of the recent prompts' tokens, the shortest first.
#include <cmath>
#include <tuple>

#include "services/router/core/policies/least.h"

namespace baton::router {

size_t PickByLengthBuckets(std::span<const Candidate> candidates, const Asked& asked) {
  return Least(candidates, [&asked](const Candidate& candidate) {
    return std::tuple(std::abs(candidate.place - asked.length_place), LoadOf(candidate));
  });
}

}  // namespace baton::router
