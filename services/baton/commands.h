// The commands of the executable. Each takes its checked options and returns the exit code
// (process.h). `self` is the path of this executable, to start children with.
#ifndef SERVICES_BATON_COMMANDS_H_
#define SERVICES_BATON_COMMANDS_H_

#include "common/config/options.h"
#include "common/preflight/preflight.h"
#include "services/baton/process.h"

namespace baton {

// This machine with all that checks may ask of it, for those who load no libtorch themselves.
Machine MachineForChecks();

int RunRouterCommand(const config::ParsedOptions& options);
int RunWorkerCommand(const config::ParsedOptions& options);
// Several processes: a cluster on this machine, of `serve` or `up`, or the workers of one node of a
// chain or a decode service, for options with --nnodes.
int RunLaunchCommand(const config::ParsedOptions& options, const char* self);
int RunValidateCommand(const config::ParsedOptions& options);
int RunDrainCommand(const config::ParsedOptions& options);
int RunSimulateCommand(const config::ParsedOptions& options);
int RunTraceCommand(const config::ParsedOptions& options);
int RunReplayCommand(const config::ParsedOptions& options);
int RunModelInfoCommand(const config::ParsedOptions& options);
int RunModelMakeCommand(const config::ParsedOptions& options);

}  // namespace baton

#endif  // SERVICES_BATON_COMMANDS_H_
