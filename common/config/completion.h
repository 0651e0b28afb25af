// Completion scripts for shells, made from the option table: commands, each one's flags, and the
// values of those that have a list or are paths.
#ifndef COMMON_CONFIG_COMPLETION_H_
#define COMMON_CONFIG_COMPLETION_H_

#include <string>

#include "absl/status/statusor.h"

namespace baton::config {

// `shell` is bash or zsh; InvalidArgument otherwise. The script needs that shell alone, no library
// of completion functions.
absl::StatusOr<std::string> CompletionScript(const std::string& shell);

}  // namespace baton::config

#endif  // COMMON_CONFIG_COMPLETION_H_
