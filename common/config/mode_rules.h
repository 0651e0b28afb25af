// What ParseOptions asks about --disaggregation-mode.
#ifndef COMMON_CONFIG_MODE_RULES_H_
#define COMMON_CONFIG_MODE_RULES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/option_sources.h"
#include "common/config/option_table.h"
#include "common/config/options.h"

namespace baton::config {

// Whether the option has a value that is not its default.
bool WasSet(const ParsedOptions& parsed, const std::string& name);

// A worker's role, from the mode alone: the defaults of all other options hang on it.
absl::StatusOr<Role> GivenWorkerRole(const Assignments& assignments);

// Refuses a mode that the command cannot be given, wherever it was: a simulated cluster is
// disaggregated, and what `serve` starts is not.
absl::Status CheckModeOf(Command command, const Assignments& assignments);

// InvalidField if a flag of `option` contradicts a worker of `role`, which does not take it.
absl::Status CheckContradiction(const Option& option, const Assignment& assignment, Role role);

// What a colocated cluster (UP) is not to be told, and notes of what has no meaning there.
absl::Status CheckColocatedCluster(ParsedOptions* parsed);

// The rules for what colocated chains alone have, once all values are there.
absl::Status CheckColocated(const v1::Options& options);

}  // namespace baton::config

#endif  // COMMON_CONFIG_MODE_RULES_H_
