// Errors that are the work of a drain.
#ifndef COMMON_BASE_DRAIN_STATUS_H_
#define COMMON_BASE_DRAIN_STATUS_H_

#include <cstdint>

#include "absl/status/status.h"

namespace baton {

// Marks an error as the work of a drain: the process that says it takes nothing new, and has not
// begun what this was the answer to, or has no time left for it. The same may be sent to another
// one at once, and to this one's successor after `retry_after_ms` (> 0).
inline constexpr int64_t kDrainRetryAfterMs = 1000;
absl::Status EndedByDrain(absl::Status status, int64_t retry_after_ms = kDrainRetryAfterMs);
bool IsEndedByDrain(const absl::Status& status);
// 0: there is no hint.
int64_t RetryAfterMsOf(const absl::Status& status);

}  // namespace baton

#endif  // COMMON_BASE_DRAIN_STATUS_H_
