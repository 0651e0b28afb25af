#include "common/config/option_sources.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/spelling.h"
#include "common/base/status.h"
#include "common/config/foreign_flags.h"

namespace baton::config {
namespace {

constexpr char kPrefix[] = "BATON_";

absl::Status UnknownFlag(Command command, const std::string& flag) {
  const std::string advice = ForeignFlagAdvice(flag);
  if (!advice.empty()) {
    return InvalidField(
        flag, absl::StrCat("--", flag, " is a flag of SGLang or vLLM, not of Baton: ", advice));
  }
  std::vector<std::string> candidates = {"--help"};
  for (const Option& option : OptionTable()) {
    if (!AppliesTo(option, command)) continue;
    candidates.push_back(absl::StrCat("--", option.flag));
    for (const std::string& alias : option.spec->alias()) {
      candidates.push_back(absl::StrCat("--", alias));
    }
  }
  return InvalidField(
      flag, absl::StrCat("unknown flag", DidYouMean(absl::StrCat("--", flag), candidates)));
}

absl::Status UnknownVariable(const std::string& variable, const std::string& value) {
  std::vector<std::string> candidates;
  for (const Option& option : OptionTable()) candidates.push_back(option.variable);
  return InvalidField(variable, absl::StrCat("unknown environment variable (value '", value, "')",
                                             DidYouMean(variable, candidates)));
}

// Kubernetes gives every pod variables for every Service of its namespace, and one named `baton`
// yields BATON_PORT=tcp://10.0.0.1:80, BATON_SERVICE_HOST and more.
bool IsServiceLink(const std::string& variable, const std::string& value) {
  return absl::StartsWith(value, "tcp://") || absl::StartsWith(variable, "BATON_SERVICE_") ||
         absl::StartsWith(variable, "BATON_PORT_");
}

std::string UnexpectedArgument(const std::string& argument) {
  // vLLM writes -tp 2, and the model without a flag.
  const std::string flag =
      argument.substr(std::min(argument.find_first_not_of('-'), argument.size()));
  if (argument != flag && FindByFlag(flag) != nullptr) {
    return absl::StrCat("unexpected argument; options start with two dashes: --", flag);
  }
  if (argument == flag && absl::StrContains(argument, '/')) {
    return absl::StrCat("unexpected argument; a model is given as --model-path ", argument);
  }
  return "unexpected argument; options start with -- (see --help)";
}

// Splits `--name=value` or `--name`; false if `argument` is no flag.
bool SplitFlag(const std::string& argument, std::string* name, std::optional<std::string>* value) {
  if (argument.size() < 3 || !absl::StartsWith(argument, "--")) return false;
  const size_t equals = argument.find('=');
  *name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
  value->reset();
  if (equals != std::string::npos) *value = argument.substr(equals + 1);
  return true;
}

}  // namespace

std::optional<std::string> HelpRequest(const std::vector<std::string>& args) {
  for (const std::string& argument : args) {
    if (argument == "--help" || argument == "-h") return "";
    if (absl::StartsWith(argument, "--help=")) return argument.substr(sizeof("--help=") - 1);
  }
  return std::nullopt;
}

absl::StatusOr<Assignments> ReadFlags(Command command, const std::vector<std::string>& args) {
  Assignments assignments;
  for (size_t i = 0; i < args.size(); ++i) {
    std::string name;
    std::optional<std::string> value;
    if (!SplitFlag(args[i], &name, &value)) {
      return InvalidField(args[i], UnexpectedArgument(args[i]));
    }
    const Option* option = FindByFlag(name);
    if (option == nullptr) return UnknownFlag(command, name);
    if (!value.has_value() && option->is_bool()) value = "true";
    if (!value.has_value()) {
      // A value may start with one dash (-1), never with two: that is the next flag.
      if (i + 1 == args.size() || absl::StartsWith(args[i + 1], "--")) {
        return InvalidField(
            option->name, absl::StrCat("flag --", name, " needs a value: ", ExpectedText(*option)));
      }
      value = args[++i];
    }
    assignments[option->name] = {*value, {OptionSource::Kind::kFlag, absl::StrCat("--", name)}};
  }
  return assignments;
}

absl::StatusOr<Assignments> ReadEnvironment(const std::vector<std::string>& environment) {
  Assignments assignments;
  Assignments others;  // Other programs' variables that mean the same; Baton's own count before.
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    const std::string variable = entry.substr(0, equals);
    const std::string value = entry.substr(equals + 1);
    if (!absl::StartsWith(entry, kPrefix)) {
      const Option* option = FindByVariable(variable);
      if (option == nullptr) continue;
      others[option->name] = {value, {OptionSource::Kind::kEnvironment, variable}};
      continue;
    }
    if (IsServiceLink(variable, value)) {
      return InvalidField(variable,
                          absl::StrCat("'", value,
                                       "' looks like a variable that Kubernetes sets for a Service "
                                       "named baton; set enableServiceLinks: false in the pod"));
    }
    const Option* option = FindByVariable(variable);
    if (option == nullptr) return UnknownVariable(variable, value);
    assignments[option->name] = {value, {OptionSource::Kind::kEnvironment, variable}};
  }
  assignments.merge(others);
  return assignments;
}

absl::StatusOr<Assignments> ReadSources(Command command, const OptionInput& input) {
  BATON_ASSIGN_OR_RETURN(Assignments merged, ReadFlags(command, input.args));
  BATON_ASSIGN_OR_RETURN(Assignments environment, ReadEnvironment(input.environment));
  merged.merge(environment);  // Keeps what is there: the flags.

  const auto config = merged.find("config");
  if (config == merged.end() || config->second.text.empty()) return merged;
  const std::string& path = config->second.text;
  absl::StatusOr<std::string> text = input.read_file(path);
  if (!text.ok()) {
    return InvalidField(
        "config", absl::StrCat("cannot read '", path, "' (", SourceText(config->second.source),
                               "): ", text.status().message()));
  }
  BATON_ASSIGN_OR_RETURN(Assignments file, ReadYaml(path, *text));
  merged.merge(file);
  return merged;
}

}  // namespace baton::config
