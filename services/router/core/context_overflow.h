// Errors about a request's fields: under which code, and that it is longer than what serves it,
// however long it waits.
#ifndef SERVICES_ROUTER_CORE_CONTEXT_OVERFLOW_H_
#define SERVICES_ROUTER_CORE_CONTEXT_OVERFLOW_H_

#include <string_view>

#include "absl/status/status.h"

namespace baton::router {

// InvalidField under another code.
absl::Status FieldError(absl::StatusCode code, std::string_view field, std::string_view message);

// What the core calls the two fields; fronts know them by the names that clients use.
inline constexpr std::string_view kPromptField = "prompt";
inline constexpr std::string_view kMaxTokensField = "max_tokens";

// INVALID_ARGUMENT with FieldOf, marked for IsContextOverflow.
absl::Status ContextOverflow(std::string_view field, std::string_view message);
bool IsContextOverflow(const absl::Status& status);

// The same error about the field by another name; other payloads stay.
absl::Status RenameOverflow(const absl::Status& status, std::string_view field);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_CONTEXT_OVERFLOW_H_
