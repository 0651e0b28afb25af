#include <tuple>

#include "services/router/core/policies/least.h"

namespace baton::router {

size_t PickByRoundRobin(std::span<const Candidate> candidates) {
  return Least(candidates, [](const Candidate& candidate) {
    return std::tuple(candidate.beside, candidate.chain_used, candidate.decode_used);
  });
}

}  // namespace baton::router
