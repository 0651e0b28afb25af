// Helpers around absl::Status, the error type at every boundary of Baton.
#ifndef COMMON_BASE_STATUS_H_
#define COMMON_BASE_STATUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace baton {

// Returns InvalidArgument with `message`, remembering which request field was wrong, so that HTTP
// can answer `param` and gRPC a detail that names it.
absl::Status InvalidField(std::string_view field, std::string_view message);

// The field of a status that InvalidField made, if any.
std::optional<std::string> FieldOf(const absl::Status& status);

// Marks which leg of a request failed ("router", "prefill", "decode") and on which instance.
absl::Status WithLeg(absl::Status status, std::string_view leg, std::string_view instance);
std::optional<std::string> LegOf(const absl::Status& status);
std::optional<std::string> InstanceOf(const absl::Status& status);

// `context: message`, code and payloads kept; OK stays OK.
absl::Status Annotate(absl::Status status, std::string_view context);

}  // namespace baton

#define BATON_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                        \
    if (absl::Status baton_status_ = (expression); !baton_status_.ok()) return baton_status_; \
  } while (false)

#define BATON_CONCAT_INNER_(a, b) a##b
#define BATON_CONCAT_(a, b) BATON_CONCAT_INNER_(a, b)

#define BATON_ASSIGN_OR_RETURN(lhs, expression) \
  BATON_ASSIGN_OR_RETURN_IMPL_(BATON_CONCAT_(baton_statusor_, __LINE__), lhs, expression)

#define BATON_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expression) \
  auto statusor = (expression);                                 \
  if (!statusor.ok()) return std::move(statusor).status();      \
  lhs = *std::move(statusor)

namespace baton {

// How a status reads in a log.

// "UNAVAILABLE: the connection broke (decode leg, d0)": leg and instance (status.h) only where they
// are known and the message does not name them.
std::string DescribeStatus(const absl::Status& status);

// Errors that are the work of a drain.

// Marks an error as the work of a drain: the process that says it takes nothing new, and has not
// begun what this was the answer to, or has no time left for it. The same may be sent to another
// one at once, and to this one's successor after `retry_after_ms` (> 0).
inline constexpr int64_t kDrainRetryAfterMs = 1000;
absl::Status EndedByDrain(absl::Status status, int64_t retry_after_ms = kDrainRetryAfterMs);
bool IsEndedByDrain(const absl::Status& status);
// 0: there is no hint.
int64_t RetryAfterMsOf(const absl::Status& status);

// Errors that mean "too much at the moment", and the hint when to try again that such errors and
// those of drains carry.

// Marks an error (RESOURCE_EXHAUSTED, which also says "too large for ever") as passing: a queue is
// full, nothing has begun, and the same may succeed elsewhere at once and here after
// `retry_after_ms` (> 0).
inline constexpr int64_t kOverloadRetryAfterMs = 1000;  // To clients.
inline constexpr int64_t kQueueRetryAfterMs = 100;      // From a worker's queue to routers.
absl::Status Overloaded(absl::Status status, int64_t retry_after_ms = kOverloadRetryAfterMs);
bool IsOverloaded(const absl::Status& status);

// The hint of an Overloaded or EndedByDrain status. 0: there is none.
int64_t RetryHintMsOf(const absl::Status& status);

// Errors of two processes that can't connect, of which each may serve others.

absl::Status Unconnected(absl::Status status);
bool IsUnconnected(const absl::Status& status);

// The check of a number that comes from a peer.

// INVALID_ARGUMENT that names the field unless `value` is from `low` to `high`, both included.
template <typename T>
absl::Status InRange(T value, T low, T high, const std::string& field) {
  if (value >= low && value <= high) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(value, ", expected ", low, " to ", high));
}

}  // namespace baton

#endif  // COMMON_BASE_STATUS_H_
