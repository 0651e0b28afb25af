#include "common/config/option_table.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace baton::config {
namespace {

using google::protobuf::FieldDescriptor;
using v1::OptionSpec;

struct CommandFacts {
  Command command;
  const char* name;
  const char* summary;
  Role role;
};

// In the order in which they are shown.
constexpr CommandFacts kCommands[] = {
    {Command::kServe, "serve",
     "serve a model on this machine: a router and chains that read and decode", OptionSpec::UP},
    {Command::kUp, "up", "a local cluster from a few flags or a YAML file", OptionSpec::UP},
    {Command::kRouter, "router", "accept requests over HTTP and gRPC and pair them with workers",
     OptionSpec::ROUTER},
    {Command::kWorker, "worker",
     "a stage of a chain, colocated or for prefill, or a decode service (--disaggregation-mode)",
     OptionSpec::ROLE_UNSPECIFIED},  // GivenWorkerRole decides.
    {Command::kValidate, "validate",
     "whether it would start here, and what it would be: options, layers, memory",
     OptionSpec::VALIDATE},
    {Command::kDrain, "drain", "have a worker finish its requests and leave", OptionSpec::DRAIN},
    {Command::kSimulate, "simulate",
     "what a cluster would do with a workload, in virtual time: latencies, idle stages, queues",
     OptionSpec::SIMULATE},
    {Command::kTrace, "trace",
     "a picture of what prefill stages computed when, from the spans of a real run",
     OptionSpec::TRACE},
    {Command::kReplay, "replay",
     "what a router went by when it chose workers, and what another policy would have done",
     OptionSpec::REPLAY},
    {Command::kModelInfo, "model info", "describe a checkpoint directory", OptionSpec::MODEL},
    {Command::kModelMake, "model make", "write a random checkpoint of a given shape",
     OptionSpec::MODEL},
};

const CommandFacts& FactsOf(Command command) {
  return *std::find_if(std::begin(kCommands), std::end(kCommands),
                       [&](const CommandFacts& facts) { return facts.command == command; });
}

std::vector<Option> BuildTable() {
  std::vector<Option> table;
  const google::protobuf::Descriptor* message = v1::Options::descriptor();
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor* field = message->field(i);
    BATON_CHECK(field->options().HasExtension(v1::spec)) << field->full_name() << " has no spec";
    Option option;
    option.field = field;
    option.spec = &field->options().GetExtension(v1::spec);
    option.name = field->name();
    option.flag = absl::StrReplaceAll(option.name, {{"_", "-"}});
    option.variable = absl::StrCat("BATON_", absl::AsciiStrToUpper(option.name));
    table.push_back(std::move(option));
  }
  return table;
}

template <typename Predicate>
const Option* Find(Predicate matches) {
  const std::vector<Option>& table = OptionTable();
  const auto found = std::find_if(table.begin(), table.end(), matches);
  return found == table.end() ? nullptr : &*found;
}

// Multiplier of a suffix; lower case is decimal and upper case binary. 0: not a suffix.
int64_t SuffixScale(char suffix) {
  switch (suffix) {
    case 'k':
      return 1'000;
    case 'm':
      return 1'000'000;
    case 'g':
      return 1'000'000'000;
    case 'K':
      return int64_t{1} << 10;
    case 'M':
      return int64_t{1} << 20;
    case 'G':
      return int64_t{1} << 30;
    default:
      return 0;
  }
}

// [-]digits[suffix]; false if `text` is anything else or does not fit.
bool ParseNumber(const std::string& text, int64_t* number) {
  std::string digits = text;
  int64_t scale = 1;
  if (!digits.empty() && SuffixScale(digits.back()) != 0) {
    scale = SuffixScale(digits.back());
    digits.pop_back();
  }
  const bool negative = !digits.empty() && digits.front() == '-';
  if (negative) digits.erase(0, 1);
  if (digits.empty()) return false;
  int64_t value = 0;
  for (const char c : digits) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
    if (__builtin_mul_overflow(value, int64_t{10}, &value)) return false;
    if (__builtin_add_overflow(value, int64_t{c - '0'}, &value)) return false;
  }
  if (__builtin_mul_overflow(value, negative ? -scale : scale, &value)) return false;
  *number = value;
  return true;
}

bool IsAllowed(const Option& option, const std::string& text) {
  const auto& allowed = option.spec->allowed();
  return allowed.empty() || std::find(allowed.begin(), allowed.end(), text) != allowed.end();
}

bool InRange(const Option& option, int64_t number) {
  const v1::OptionSpec& spec = *option.spec;
  if (spec.has_minimum() && number < spec.minimum()) return false;
  if (spec.has_maximum() && number > spec.maximum()) return false;
  return IsAllowed(option, absl::StrCat(number));
}

bool IsFraction(const std::string& text, const v1::OptionSpec& spec) {
  double value = 0;
  if (text.empty()) return !spec.zero();
  const double most = spec.has_maximum() ? static_cast<double>(spec.maximum()) : 1;
  return absl::SimpleAtod(text, &value) && (value > 0 || (spec.zero() && value == 0)) &&
         value <= most;
}

// False if `text` is not a value of the option.
bool StoreValue(const Option& option, const std::string& text, v1::Options* values) {
  const google::protobuf::Reflection* reflection = values->GetReflection();
  switch (option.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      if (text != "true" && text != "false") return false;
      reflection->SetBool(values, option.field, text == "true");
      return true;
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t number = option.spec->auto_number();
      if (option.spec->has_auto_number() && text == "auto") {
        reflection->SetInt64(values, option.field, number);
        return true;
      }
      if (!ParseNumber(text, &number) || !InRange(option, number)) return false;
      // The number that stands for the word is no value of its own.
      if (option.spec->has_auto_number() && number == option.spec->auto_number()) return false;
      reflection->SetInt64(values, option.field, number);
      return true;
    }
    case FieldDescriptor::CPPTYPE_STRING:
      if (!IsAllowed(option, text) || text.find('\0') != std::string::npos) return false;
      if (option.spec->fraction() && !IsFraction(text, *option.spec)) return false;
      reflection->SetString(values, option.field, text);
      return true;
    default:
      BATON_CHECK(false) << option.name << ": options are int64, bool or string";
      return false;
  }
}

}  // namespace

const std::vector<Command>& AllCommands() {
  static const auto* const all = [] {
    auto* const commands = new std::vector<Command>;
    for (const CommandFacts& facts : kCommands) commands->push_back(facts.command);
    return commands;
  }();
  return *all;
}

const char* CommandName(Command command) { return FactsOf(command).name; }

const char* CommandSummary(Command command) { return FactsOf(command).summary; }

Role RoleOf(Command command) { return FactsOf(command).role; }

bool Option::is_bool() const { return field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL; }
bool Option::is_number() const { return field->cpp_type() == FieldDescriptor::CPPTYPE_INT64; }

const std::vector<Option>& OptionTable() {
  static const std::vector<Option>* const table = new std::vector<Option>(BuildTable());
  return *table;
}

const Option* FindByName(const std::string& name) {
  return Find([&](const Option& option) { return option.name == name; });
}

const Option* FindByFlag(const std::string& flag) {
  return Find([&](const Option& option) {
    const auto& aliases = option.spec->alias();
    return option.flag == flag || std::find(aliases.begin(), aliases.end(), flag) != aliases.end();
  });
}

const Option* FindByVariable(const std::string& variable) {
  return Find([&](const Option& option) {
    const auto& others = option.spec->other_variable();
    return option.variable == variable ||
           std::find(others.begin(), others.end(), variable) != others.end();
  });
}

bool AppliesTo(const Option& option, Role role) {
  const auto& roles = option.spec->roles();
  const auto has = [&](int r) { return std::find(roles.begin(), roles.end(), r) != roles.end(); };
  const bool chains = has(v1::OptionSpec::PREFILL) && !option.spec->apart();
  if (role == v1::OptionSpec::COLOCATED) return chains || has(role);
  if (role != v1::OptionSpec::VALIDATE) return has(role);
  return has(v1::OptionSpec::ROUTER) || has(v1::OptionSpec::PREFILL) ||
         has(v1::OptionSpec::DECODE) || has(v1::OptionSpec::COLOCATED) || has(v1::OptionSpec::UP) ||
         has(v1::OptionSpec::VALIDATE);
}

bool AppliesTo(const Option& option, Command command) {
  if (command != Command::kWorker) return AppliesTo(option, RoleOf(command));
  return AppliesTo(option, v1::OptionSpec::PREFILL) || AppliesTo(option, v1::OptionSpec::DECODE) ||
         AppliesTo(option, v1::OptionSpec::COLOCATED);
}

std::string RolesText(const Option& option) {
  return absl::StrJoin(option.spec->roles(), ", ", [](std::string* out, int role) {
    out->append(RoleName(static_cast<Role>(role)));
  });
}

std::string DefaultText(const Option& option, Role role) {
  for (const auto& entry : option.spec->default_for()) {
    if (entry.role() == role) return entry.value();
  }
  // What the table says of PREFILL it says of both kinds of chains.
  if (role == v1::OptionSpec::COLOCATED) return DefaultText(option, v1::OptionSpec::PREFILL);
  return option.spec->default_value();
}

std::string ExpectedText(const Option& option) {
  const v1::OptionSpec& spec = *option.spec;
  if (option.is_bool()) return "true or false";
  if (!spec.allowed().empty()) return absl::StrCat("one of ", absl::StrJoin(spec.allowed(), ", "));
  if (spec.zero()) {
    return absl::StrCat("a decimal number from 0 to ", spec.has_maximum() ? spec.maximum() : 1,
                        ", such as 0.1");
  }
  if (spec.fraction()) return "a decimal number above 0 and at most 1, such as 0.85";
  if (!option.is_number()) return "text";
  if (spec.has_minimum() && spec.has_maximum()) {
    return absl::StrCat("a whole number from ", spec.minimum(), " to ", spec.maximum(),
                        spec.has_auto_number() ? ", or auto" : "");
  }
  if (spec.has_minimum()) return absl::StrCat("a whole number of at least ", spec.minimum());
  return "a whole number";
}

absl::Status SetOption(const Option& option, const std::string& text, const std::string& source,
                       v1::Options* values) {
  if (StoreValue(option, text, values)) return absl::OkStatus();
  const std::string shown = option.spec->secret() ? "(hidden)" : absl::StrCat("'", text, "'");
  return InvalidField(option.name, absl::StrCat("got ", shown, " from ", source, "; expected ",
                                                ExpectedText(option)));
}

std::string ValueText(const Option& option, const v1::Options& values) {
  const google::protobuf::Reflection* reflection = values.GetReflection();
  if (option.is_bool()) return reflection->GetBool(values, option.field) ? "true" : "false";
  if (option.is_number()) {
    const int64_t number = reflection->GetInt64(values, option.field);
    const bool automatic = option.spec->has_auto_number() && number == option.spec->auto_number();
    return automatic ? "auto" : absl::StrCat(number);
  }
  return reflection->GetString(values, option.field);
}

}  // namespace baton::config
