// Helpers around absl::Status, the error type at every boundary of Baton.
#ifndef COMMON_BASE_STATUS_H_
#define COMMON_BASE_STATUS_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

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

#endif  // COMMON_BASE_STATUS_H_
