#include "services/router/core/policies/policy.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace baton::router {
namespace {

constexpr std::pair<const char*, Policy> kNames[] = {
    {"cost", Policy::kCost},
    {"least_load", Policy::kLeastLoad},
    {"round_robin", Policy::kRoundRobin},
    {"random", Policy::kRandom},
    {"power_of_two", Policy::kPowerOfTwo},
    {"cache_aware", Policy::kCacheAware},
    {"consistent_hash", Policy::kConsistentHash},
    {"length_buckets", Policy::kLengthBuckets},
};

}  // namespace

Policy ParsePolicy(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kNames), std::end(kNames),
                                         [&name](const auto& row) { return row.first == name; });
  return found == std::end(kNames) ? Policy::kCost : found->second;
}

const char* PolicyName(Policy policy) {
  const auto* const found =
      std::find_if(std::begin(kNames), std::end(kNames),
                   [policy](const auto& row) { return row.second == policy; });
  return found->first;
}

size_t Pick(Policy policy, std::span<const Candidate> candidates, const Asked& asked,
            Random& random) {
  switch (policy) {
    case Policy::kCost:
      return PickByCost(candidates, asked);
    case Policy::kLeastLoad:
      return PickByLeastLoad(candidates);
    case Policy::kRoundRobin:
      return PickByRoundRobin(candidates);
    case Policy::kRandom:
      return PickByRandom(candidates, random);
    case Policy::kPowerOfTwo:
      return PickByPowerOfTwo(candidates, random);
    case Policy::kCacheAware:
      return PickByCacheAware(candidates, asked);
    case Policy::kConsistentHash:
      return PickByConsistentHash(candidates, asked);
    case Policy::kLengthBuckets:
      return PickByLengthBuckets(candidates, asked);
  }
  return 0;
}

}  // namespace baton::router
