// OptionInput from the real process: its arguments, environment and file system.
#ifndef COMMON_CONFIG_PROCESS_INPUT_H_
#define COMMON_CONFIG_PROCESS_INPUT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/options.h"

namespace baton::config {

// `argv[skip]` is the first option: 2 in `baton router --port 1`, 3 in `baton model make --out X`.
OptionInput FromProcess(int argc, char** argv, int skip = 2);

// The process's environment as NAME=value.
std::vector<std::string> ProcessEnvironment();

// The text of a regular file of at most 1 MiB.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

}  // namespace baton::config

#endif  // COMMON_CONFIG_PROCESS_INPUT_H_
