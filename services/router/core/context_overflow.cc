#include "services/router/core/context_overflow.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace baton::router {
namespace {

constexpr char kOverflowPayload[] = "baton.dev/context_overflow";

}  // namespace

absl::Status FieldError(absl::StatusCode code, std::string_view field, std::string_view message) {
  const absl::Status invalid = InvalidField(field, message);
  absl::Status status(code, invalid.message());
  invalid.ForEachPayload([&status](absl::string_view url, const absl::Cord& payload) {
    status.SetPayload(url, payload);
  });
  return status;
}

absl::Status ContextOverflow(std::string_view field, std::string_view message) {
  absl::Status status = InvalidField(field, message);
  status.SetPayload(kOverflowPayload, absl::Cord());
  return status;
}

bool IsContextOverflow(const absl::Status& status) {
  return status.GetPayload(kOverflowPayload).has_value();
}

absl::Status RenameOverflow(const absl::Status& status, std::string_view field) {
  const std::string prefix = FieldOf(status).value_or("") + ": ";
  std::string_view message(status.message().data(), status.message().size());
  if (message.starts_with(prefix)) message.remove_prefix(prefix.size());
  absl::Status renamed = ContextOverflow(field, message);
  status.ForEachPayload([&renamed](absl::string_view url, const absl::Cord& payload) {
    if (!renamed.GetPayload(url).has_value()) renamed.SetPayload(url, payload);
  });
  return renamed;
}

}  // namespace baton::router
