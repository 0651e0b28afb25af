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

// The value of --help, --help=WORD or -h among `args`, if there is one.
std::optional<std::string> HelpRequest(const std::vector<std::string>& args);

// Each by itself: every name is known and has a value.
absl::StatusOr<Assignments> ReadFlags(Command command, const std::vector<std::string>& args);
absl::StatusOr<Assignments> ReadEnvironment(const std::vector<std::string>& environment);
absl::StatusOr<Assignments> ReadYaml(const std::string& path, const std::string& text);

// All three merged by precedence; --config or BATON_CONFIG names the file.
absl::StatusOr<Assignments> ReadSources(Command command, const OptionInput& input);

}  // namespace baton::config

#endif  // COMMON_CONFIG_OPTION_SOURCES_H_
