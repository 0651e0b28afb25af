// The commands of the executable. Each takes its checked options; main.cc prints what went wrong,
// and ends with the exit code for that (process.h). `self`: path of this executable, to start
// children.
#ifndef SERVICES_BATON_COMMANDS_H_
#define SERVICES_BATON_COMMANDS_H_

#include "absl/status/status.h"
#include "common/config/options.h"
#include "common/preflight/preflight.h"
#include "services/baton/process.h"

namespace baton {

// This machine with all that checks may ask of it, for those who load no libtorch themselves.
Machine MachineForChecks();

absl::Status RunRouterCommand(const config::ParsedOptions& options);
absl::Status RunWorkerCommand(const config::ParsedOptions& options);
// Several processes: a cluster on this machine, of `serve` or `up`, or the workers of one node of a
// chain or a decode service, for options with --nnodes.
absl::Status RunLaunchCommand(const config::ParsedOptions& options, const char* self);
// Its verdict is the exit code.
int RunValidateCommand(const config::ParsedOptions& options);
absl::Status RunDrainCommand(const config::ParsedOptions& options);
absl::Status RunSimulateCommand(const config::ParsedOptions& options);
absl::Status RunTraceCommand(const config::ParsedOptions& options);
absl::Status RunReplayCommand(const config::ParsedOptions& options);
absl::Status RunModelInfoCommand(const config::ParsedOptions& options);
absl::Status RunModelMakeCommand(const config::ParsedOptions& options);

}  // namespace baton

#endif  // SERVICES_BATON_COMMANDS_H_
