// What a drain has ended before it was done, counted since the process began.
#ifndef COMMON_TYPES_DRAIN_COUNTS_H_
#define COMMON_TYPES_DRAIN_COUNTS_H_

#include <cstdint>

namespace baton {

struct DrainCounts {
  int64_t refused_total = 0;      // Came while draining.
  int64_t handed_back_total = 0;  // Had been taken and not begun: they can begin elsewhere.
  int64_t time_over_total = 0;    // Ran, and would have run longer than the drain may take.
  int64_t worker_total = 0;       // Router: ended by the drain of a worker.
  bool operator==(const DrainCounts&) const = default;
};

}  // namespace baton

#endif  // COMMON_TYPES_DRAIN_COUNTS_H_
