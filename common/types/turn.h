// Who is next among requests that wait.
#ifndef COMMON_TYPES_TURN_H_
#define COMMON_TYPES_TURN_H_

#include <compare>
#include <cstdint>

namespace baton {

// A request's priority; 0 is that of a request that says none, higher is sooner.
inline constexpr int kMaxPriority = 100;  // And at least -kMaxPriority.

// How much earlier a request is served for one level of priority, as if it had come by so much
// earlier. So nothing is overtaken for ever: what comes more than the head start later goes behind.
// Rejected: levels that wait for one another, where a busy one starves those below.
inline constexpr int64_t kPriorityStepUs = 10'000'000;

// Requests are served from the smallest turn on.
struct Turn {
  int64_t from_us = 0;  // Arrival less the head start.
  uint64_t order = 0;   // Among equals; unique.
  auto operator<=>(const Turn&) const = default;
};

}  // namespace baton

#endif  // COMMON_TYPES_TURN_H_
