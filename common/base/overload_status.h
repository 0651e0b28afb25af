// Errors that mean "too much at the moment", and the hint when to try again that such errors and
// those of drains carry.
#ifndef COMMON_BASE_OVERLOAD_STATUS_H_
#define COMMON_BASE_OVERLOAD_STATUS_H_

#include <cstdint>

#include "absl/status/status.h"

namespace baton {

// Marks an error (RESOURCE_EXHAUSTED, which also says "too large for ever") as passing: a queue is
// full, nothing has begun, and the same may succeed elsewhere at once and here after
// `retry_after_ms` (> 0).
inline constexpr int64_t kOverloadRetryAfterMs = 1000;  // To clients.
inline constexpr int64_t kQueueRetryAfterMs = 100;      // From a worker's queue to routers.
absl::Status Overloaded(absl::Status status, int64_t retry_after_ms = kOverloadRetryAfterMs);
bool IsOverloaded(const absl::Status& status);

// The hint of an Overloaded or EndedByDrain status. 0: there is none.
int64_t RetryHintMsOf(const absl::Status& status);

}  // namespace baton

#endif  // COMMON_BASE_OVERLOAD_STATUS_H_
