// The commands of the executable. Each takes its checked options and returns the exit code
// (process.h).
#ifndef SERVICES_BATON_COMMANDS_H_
#define SERVICES_BATON_COMMANDS_H_

#include "common/config/options.h"
#include "services/baton/process.h"

namespace baton {

int RunRouterCommand(const config::ParsedOptions& options);
int RunWorkerCommand(const config::ParsedOptions& options);
// `self` is the path of this executable, to start the children with.
int RunUpCommand(const config::ParsedOptions& options, const char* self);
int RunValidateCommand(const config::ParsedOptions& options);
int RunDrainCommand(const config::ParsedOptions& options);
int RunSimulateCommand(const config::ParsedOptions& options);
int RunModelInfoCommand(const config::ParsedOptions& options);
int RunModelMakeCommand(const config::ParsedOptions& options);

}  // namespace baton

#endif  // SERVICES_BATON_COMMANDS_H_
