// One predicted time for each candidate, so that load, cache and transfer are weighed and there is
// no threshold at which one of them counts for nothing.
#include <cstdint>
#include <tuple>

#include "services/router/core/policies/least.h"

namespace baton::router {
namespace {

// So many tokens of the answer, slowed down by those beside it, count as the first one does.
constexpr double kAnswerTokens = 32;

// So many times the prompt's own work counts: what comes after it waits for it too, and a beginning
// that is computed once more takes the place of another in the cache. With 2, simulated
// conversations of a busy cluster leave their chains too soon; with 4 and more, they wait too long.
constexpr double kOwnWork = 3;

int64_t CostUs(const Candidate& candidate) {
  const double fill =
      static_cast<double>(candidate.requests) / static_cast<double>(candidate.decode_slots);
  return static_cast<int64_t>(candidate.queue_us + kOwnWork * candidate.prompt_us +
                              candidate.exposed_us + candidate.wait_us +
                              kAnswerTokens * candidate.token_us * fill);
}

}  // namespace

// If several cost the same, the nearest by hash is taken: several routers then agree on where a new
// prefix goes.
size_t PickByCost(std::span<const Candidate> candidates, const Asked& /*asked*/) {
  return Least(candidates, [](const Candidate& candidate) {
    return std::tuple(candidate.beside, CostUs(candidate), candidate.requests,
                      candidate.ring_distance, candidate.chain_used, candidate.decode_used);
  });
}

}  // namespace baton::router
