// Something that a check found before anything started.
#ifndef COMMON_PREFLIGHT_FINDING_H_
#define COMMON_PREFLIGHT_FINDING_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {

struct Finding {
  enum class Severity {
    kError,     // It can't work.
    kShortage,  // It could on a machine with more memory, or with less running.
    kWarning,   // It works, maybe not as meant.
  };
  Severity severity = Severity::kError;
  std::string option;   // The option to change: a name of config.proto.
  std::string message;  // What was found, what would do.

  bool refuses() const { return severity != Severity::kWarning; }
};

// An error of the option that `status` has as its field; without one, of `option`.
inline Finding ErrorFinding(const std::string& option, const absl::Status& status) {
  const std::string field = FieldOf(status).value_or(option);
  std::string message(status.message());
  const std::string prefix = absl::StrCat(field, ": ");
  if (message.compare(0, prefix.size(), prefix) == 0) message.erase(0, prefix.size());
  return {Finding::Severity::kError, field, std::move(message)};
}

}  // namespace baton

#endif  // COMMON_PREFLIGHT_FINDING_H_
