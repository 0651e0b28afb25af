// The YAML source: one flat mapping from option names to scalars. The only file that includes
// yaml-cpp, and the place where its exceptions end.
#include "common/config/option_sources.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/config/foreign_flags.h"
#include "common/config/option_text.h"

namespace baton::config {
namespace {

constexpr char kPrefix[] = "BATON_";
constexpr size_t kShownVariables = 32;
constexpr size_t kShownBytes = 64;  // Messages show this much of a user's value or name.

std::string Shown(const std::string& text) {
  return absl::CEscape(
      text.size() <= kShownBytes ? text : absl::StrCat(text.substr(0, kShownBytes), "..."));
}

// What a mistyped flag may have been meant to be: all that would be taken.
std::vector<std::string> KnownFlags(Command command) {
  std::vector<std::string> flags = {"--help"};
  const auto add_those_of = [&](const auto& applies) {
    for (const Option& option : OptionTable()) {
      if (!applies(option)) continue;
      for (std::string& flag : FlagsOf(option)) flags.push_back(std::move(flag));
    }
  };
  add_those_of([&](const Option& option) { return AppliesTo(option, command); });
  if (!Launches(command)) return flags;
  add_those_of([&](const Option& option) {
    return !AppliesTo(option, command) && AppliesTo(option, Command::kValidate);
  });
  for (const ForeignFlag& row : ForeignFlags()) {
    const bool taken = row.fate != ForeignFlag::Fate::kRefused;
    if (taken && !absl::StrContains(row.name, '*')) flags.push_back(absl::StrCat("--", row.name));
  }
  return flags;
}

absl::Status UnknownFlag(Command command, const std::string& flag) {
  const std::string advice = ForeignFlagAdvice(flag);
  if (!advice.empty()) {
    return InvalidField(
        flag, absl::StrCat("--", flag, " is a flag of SGLang or vLLM, not of Baton: ", advice));
  }
  return InvalidField(flag, absl::StrCat("unknown flag", DidYouMean(absl::StrCat("--", flag),
                                                                    KnownFlags(command))));
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

// SGLang's --log-requests is a switch.
bool IsOnOff(const Option& option) {
  const auto& allowed = option.spec->allowed();
  return std::find(allowed.begin(), allowed.end(), "on") != allowed.end();
}

// Takes what belongs to the flag `args[*at]` from behind it, and moves `at` to the last of it.
absl::StatusOr<std::string> ValuesBehind(const ForeignFlag& flag, const std::string& name,
                                         const std::vector<std::string>& args, size_t* at) {
  const size_t begin = *at + 1;
  size_t end = begin;
  const auto more = [&] {
    return end < args.size() && !absl::StartsWith(args[end], "--") &&
           (end == begin || flag.values == ForeignFlag::Values::kList);
  };
  while (more()) ++end;
  if (end == begin) return InvalidField(name, absl::StrCat("flag --", name, " needs a value"));
  *at = end - 1;
  return absl::StrJoin(args.begin() + static_cast<std::ptrdiff_t>(begin),
                       args.begin() + static_cast<std::ptrdiff_t>(end), " ");
}

// A flag that is none of our options, at `args[*at]`.
absl::Status ReadForeignFlag(Command command, const std::vector<std::string>& args,
                             const std::string& name, std::optional<std::string> value, size_t* at,
                             Sources* sources) {
  const ForeignFlag* flag = FindForeignFlag(name);
  if (flag == nullptr || flag->fate == ForeignFlag::Fate::kRefused || !Launches(command)) {
    return UnknownFlag(command, name);
  }
  if (flag->values == ForeignFlag::Values::kNone) {
    if (value.value_or("true") == "false") return absl::OkStatus();
    if (value.value_or("true") != "true") {
      return InvalidField(name,
                          absl::StrCat("flag --", name, " takes no value, got '", *value, "'"));
    }
  } else if (!value.has_value()) {
    BATON_ASSIGN_OR_RETURN(value, ValuesBehind(*flag, name, args, at));
  }
  if (flag->fate == ForeignFlag::Fate::kMeans) {
    const std::string text = flag->text;
    const size_t equals = text.find('=');
    const Option& option = *FindByFlag(text.substr(0, equals));
    sources->assignments[option.name] = {text.substr(equals + 1),
                                         {OptionSource::Kind::kFlag, absl::StrCat("--", name)}};
    return absl::OkStatus();
  }
  if (!TakesValue(*flag, value.value_or(""), args)) {
    return InvalidField(
        name, absl::StrCat("--", name, " is a flag of SGLang or vLLM, not of Baton: ", flag->text,
                           "; got '", *value, "', expected ",
                           absl::StrReplaceAll(flag->only, {{"|", " or "}}), ", or no such flag"));
  }
  const std::string given = value.has_value() ? absl::StrCat("=", Shown(*value)) : "";
  sources->notes.push_back(absl::StrCat("--", name, given, ": ", flag->text));
  return absl::OkStatus();
}

absl::Status AssignModel(const std::string& model, Sources* sources) {
  const auto flag = sources->assignments.find("model_path");
  if (flag != sources->assignments.end()) {
    return InvalidField(
        "model_path",
        absl::StrCat("got '", Shown(model), "' as the argument and '", Shown(flag->second.text),
                     "' by ", flag->second.source.where, "; give one of them"));
  }
  sources->assignments["model_path"] = {model, {OptionSource::Kind::kArgument, "MODEL"}};
  return absl::OkStatus();
}

// Kubernetes' variables for Services that are called vllm or sglang.
bool IsAnyServiceLink(const std::string& variable, const std::string& value) {
  return absl::StartsWith(value, "tcp://") || absl::StartsWith(value, "udp://") ||
         absl::StrContains(variable, "_SERVICE_HOST") ||
         absl::StrContains(variable, "_SERVICE_PORT") ||
         (absl::StrContains(variable, "_PORT_") &&
          (absl::StrContains(variable, "_TCP") || absl::StrContains(variable, "_UDP")));
}

std::string UnreadText(std::vector<std::string> variables) {
  std::sort(variables.begin(), variables.end());
  const size_t shown = std::min(variables.size(), kShownVariables);
  std::string text =
      absl::StrCat("set and not read by Baton: ",
                   absl::StrJoin(variables.begin(),
                                 variables.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < variables.size()) absl::StrAppend(&text, " and ", variables.size() - shown, " more");
  return text;
}

}  // namespace

std::optional<std::string> HelpRequest(const std::vector<std::string>& args) {
  for (const std::string& argument : args) {
    if (argument == "--help" || argument == "-h") return "";
    if (absl::StartsWith(argument, "--help=")) return argument.substr(sizeof("--help=") - 1);
  }
  return std::nullopt;
}

bool Launches(Command command) {
  return command == Command::kRouter || command == Command::kWorker || command == Command::kServe ||
         command == Command::kUp || command == Command::kValidate;
}

absl::StatusOr<Sources> ReadFlags(Command command, const std::vector<std::string>& args) {
  Sources sources;
  std::optional<std::string> model;  // Where the command takes it without a flag, as vLLM's does.
  for (size_t i = 0; i < args.size(); ++i) {
    std::string name;
    std::optional<std::string> value;
    if (!SplitFlag(args[i], &name, &value)) {
      const bool bare = !absl::StartsWith(args[i], "-") && !model.has_value();
      if (command != Command::kServe || !bare) {
        return InvalidField(args[i], UnexpectedArgument(args[i]));
      }
      model = args[i];
      continue;
    }
    const Option* option = FindByFlag(name);
    if (option == nullptr) {
      BATON_RETURN_IF_ERROR(ReadForeignFlag(command, args, name, std::move(value), &i, &sources));
      continue;
    }
    // A value may start with one dash (-1), never with two: that is the next flag.
    const bool alone = i + 1 == args.size() || absl::StartsWith(args[i + 1], "--");
    if (!value.has_value() && option->is_bool()) value = "true";
    if (!value.has_value() && alone && IsOnOff(*option)) value = "on";
    if (!value.has_value()) {
      if (alone) {
        return InvalidField(
            option->name, absl::StrCat("flag --", name, " needs a value: ", ExpectedText(*option)));
      }
      value = args[++i];
    }
    sources.assignments[option->name] = {*value,
                                         {OptionSource::Kind::kFlag, absl::StrCat("--", name)}};
  }
  if (model.has_value()) BATON_RETURN_IF_ERROR(AssignModel(*model, &sources));
  return sources;
}

absl::StatusOr<Sources> ReadEnvironment(Command command,
                                        const std::vector<std::string>& environment) {
  Sources sources;
  Assignments others;  // Other programs' variables that mean the same; Baton's own count before.
  std::vector<std::string> unread;
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    const std::string variable = entry.substr(0, equals);
    const std::string value = entry.substr(equals + 1);
    const Option* option = FindByVariable(variable);
    if (!absl::StartsWith(entry, kPrefix)) {
      if (option != nullptr) {
        others[option->name] = {value, {OptionSource::Kind::kEnvironment, variable}};
      } else if (IsForeignVariable(variable) && !IsAnyServiceLink(variable, value)) {
        unread.push_back(Shown(variable));
      }
      continue;
    }
    if (IsServiceLink(variable, value)) {
      return InvalidField(variable,
                          absl::StrCat("'", value,
                                       "' looks like a variable that Kubernetes sets for a Service "
                                       "named baton; set enableServiceLinks: false in the pod"));
    }
    if (option == nullptr) return UnknownVariable(variable, value);
    sources.assignments[option->name] = {value, {OptionSource::Kind::kEnvironment, variable}};
  }
  sources.assignments.merge(others);
  if (!unread.empty() && Launches(command)) sources.notes.push_back(UnreadText(std::move(unread)));
  return sources;
}

absl::StatusOr<Sources> ReadSources(Command command, const OptionInput& input) {
  BATON_ASSIGN_OR_RETURN(Sources sources, ReadFlags(command, input.args));
  BATON_ASSIGN_OR_RETURN(Sources environment, ReadEnvironment(command, input.environment));
  Assignments& merged = sources.assignments;
  merged.merge(environment.assignments);  // Keeps what is there: the flags.
  for (std::string& note : environment.notes) sources.notes.push_back(std::move(note));

  const auto config = merged.find("config");
  if (config == merged.end() || config->second.text.empty()) return sources;
  const std::string& path = config->second.text;
  absl::StatusOr<std::string> text = input.read_file(path);
  if (!text.ok()) {
    return InvalidField(
        "config", absl::StrCat("cannot read '", path, "' (", SourceText(config->second.source),
                               "): ", text.status().message()));
  }
  BATON_ASSIGN_OR_RETURN(Assignments file, ReadYaml(path, *text));
  merged.merge(file);
  return sources;
}

namespace {

// A configuration is a page of text; more is a wrong file.
constexpr size_t kMaxBytes = size_t{1} << 20;

std::string At(const std::string& path, const YAML::Mark& mark) {
  return absl::StrCat(path, ":", mark.line + 1);
}

// The value of `node` as a flag would write it. Lists of scalars become 3,3,4.
absl::StatusOr<std::string> ScalarText(const Option& option, const YAML::Node& node,
                                       const std::string& where) {
  if (node.IsScalar()) return node.Scalar();
  if (node.IsNull()) {
    // YAML reads a bare `null` as no value; the mode of that name is meant where there is one.
    for (const std::string& allowed : option.spec->allowed()) {
      if (allowed == "null") return allowed;
    }
    return InvalidField(option.name,
                        absl::StrCat("no value at ", where, "; expected ", ExpectedText(option)));
  }
  if (node.IsSequence() && !option.is_bool() && !option.is_number()) {
    std::vector<std::string> parts;
    for (const YAML::Node& part : node) {
      if (!part.IsScalar()) break;
      parts.push_back(part.Scalar());
    }
    if (parts.size() == node.size()) return absl::StrJoin(parts, ",");
  }
  return InvalidField(option.name, absl::StrCat("got a list or a mapping at ", where, "; expected ",
                                                ExpectedText(option)));
}

absl::StatusOr<Assignments> ReadMapping(const std::string& path, const YAML::Node& root) {
  Assignments assignments;
  for (const auto& entry : root) {
    const std::string where = At(path, entry.first.Mark());
    if (!entry.first.IsScalar()) {
      return InvalidField("config", absl::StrCat(where, ": a key must be the name of an option"));
    }
    const std::string& key = entry.first.Scalar();
    const Option* option = FindByName(key);
    if (option == nullptr) {
      std::vector<std::string> names;
      for (const Option& candidate : OptionTable()) names.push_back(candidate.name);
      return InvalidField(key, absl::StrCat("unknown key at ", where, DidYouMean(key, names)));
    }
    if (key == "config") {
      return InvalidField(key, absl::StrCat("a file cannot name another file (", where, ")"));
    }
    BATON_ASSIGN_OR_RETURN(std::string text, ScalarText(*option, entry.second, where));
    Assignment assignment{std::move(text), {OptionSource::Kind::kFile, where}};
    const auto [previous, inserted] = assignments.emplace(key, std::move(assignment));
    if (!inserted) {
      return InvalidField(
          key, absl::StrCat("given twice, at ", previous->second.source.where, " and at ", where));
    }
  }
  return assignments;
}

}  // namespace

absl::StatusOr<Assignments> ReadYaml(const std::string& path, const std::string& text) {
  if (text.size() > kMaxBytes) {
    return InvalidField(
        "config", absl::StrCat(path, " has ", text.size(), " bytes; expected at most ", kMaxBytes));
  }
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return Assignments();
    if (!root.IsMap()) {
      return InvalidField("config",
                          absl::StrCat(path, ": expected a mapping from option names to values"));
    }
    return ReadMapping(path, root);
  } catch (const YAML::Exception& error) {
    return InvalidField("config", absl::StrCat(At(path, error.mark), ": ", error.msg));
  }
}

}  // namespace baton::config
