// Who has most of the prompt cached, as SGLang's router does it: above a share of the prompt, and
// unless the load is too uneven; then the least loaded.
#include <algorithm>
#include <tuple>

#include "services/router/core/policies/least.h"

namespace baton::router {
namespace {

constexpr double kLeastShare = 0.3;  // A share of the prompt.
// Requests of the most loaded above the least loaded, and how many times as many, that are uneven.
constexpr int64_t kUnevenRequests = 64;
constexpr double kUnevenRatio = 1.5;

bool Uneven(std::span<const Candidate> candidates) {
  const auto [least, most] = std::minmax_element(
      candidates.begin(), candidates.end(),
      [](const auto& a, const auto& b) { return a.chain_requests < b.chain_requests; });
  return most->chain_requests - least->chain_requests > kUnevenRequests &&
         static_cast<double>(most->chain_requests) >
             kUnevenRatio * static_cast<double>(least->chain_requests);
}

}  // namespace

size_t PickByCacheAware(std::span<const Candidate> candidates, const Asked& asked) {
  const size_t holder = Least(candidates, [](const Candidate& candidate) {
    return std::tuple(-candidate.cached_tokens, LoadOf(candidate));
  });
  const bool cached = candidates[holder].cached_tokens > kLeastShare * asked.prompt_tokens;
  return cached && !Uneven(candidates) ? holder : PickByLeastLoad(candidates);
}

}  // namespace baton::router
