// The three sources of options (flags, environment, file), before types and ranges are looked at.
#ifndef COMMON_CONFIG_OPTION_SOURCES_H_
#define COMMON_CONFIG_OPTION_SOURCES_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/option_table.h"
#include "common/config/options.h"

namespace baton::config {

// A value that was given, as text, and where.
struct Assignment {
  std::string text;
  OptionSource source;
};

// By option name.
using Assignments = std::map<std::string, Assignment>;

struct Sources {
  Assignments assignments;
  std::vector<std::string> notes;  // What to say of what was given and is none of our options.
};

// Whether the command runs processes of a cluster, so that a launch line of SGLang or vLLM may
// stand behind it.
bool Launches(Command command);

// The value of --help, --help=WORD or -h among `args`, if there is one.
std::optional<std::string> HelpRequest(const std::vector<std::string>& args);

// Each by itself: every name is known and has a value.
absl::StatusOr<Sources> ReadFlags(Command command, const std::vector<std::string>& args);
absl::StatusOr<Sources> ReadEnvironment(Command command,
                                        const std::vector<std::string>& environment);
absl::StatusOr<Assignments> ReadYaml(const std::string& path, const std::string& text);

// All three merged by precedence; --config or BATON_CONFIG names the file.
absl::StatusOr<Sources> ReadSources(Command command, const OptionInput& input);

}  // namespace baton::config

#endif  // COMMON_CONFIG_OPTION_SOURCES_H_
