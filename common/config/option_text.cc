#include "common/config/option_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton::config {

bool Shown(const Option& option, Command command) {
  if (!AppliesTo(option, command)) return false;
  const bool for_making = option.spec->group() == "Making a model";
  if (command == Command::kModelInfo) return !for_making;
  if (command == Command::kModelMake) return option.name != "model_path";
  if (command == Command::kServe) {
    return !option.spec->apart() && option.name != "disaggregation_mode";
  }
  return true;
}

std::vector<std::string> FlagsOf(const Option& option) {
  std::vector<std::string> flags = {absl::StrCat("--", option.flag)};
  for (const std::string& alias : option.spec->alias()) flags.push_back(absl::StrCat("--", alias));
  return flags;
}

std::string PlaceholderText(const Option& option) {
  if (option.is_bool()) return "[=true|false]";
  if (!option.spec->allowed().empty()) {
    return absl::StrCat(" ", absl::StrJoin(option.spec->allowed(), "|"));
  }
  if (option.spec->path() == v1::OptionSpec::DIRECTORY) return " DIR";
  if (option.spec->path() == v1::OptionSpec::FILE) return " FILE";
  if (option.spec->fraction()) return " FRACTION";
  return option.is_number() ? " N" : " TEXT";
}

std::string RangeText(const Option& option) {
  const v1::OptionSpec& spec = *option.spec;
  if (option.is_bool()) return "true, false";
  if (!spec.allowed().empty()) return absl::StrJoin(spec.allowed(), ", ");
  if (spec.zero()) return absl::StrCat("0 to ", spec.has_maximum() ? spec.maximum() : 1);
  if (spec.fraction()) return "above 0, at most 1";
  if (!option.is_number()) return "";
  if (!spec.has_maximum()) return absl::StrCat("at least ", spec.minimum());
  return absl::StrCat(spec.minimum(), " to ", spec.maximum(),
                      spec.has_auto_number() ? ", auto" : "");
}

std::string DefaultsText(const Option& option) {
  std::string text = option.spec->default_value();
  for (const auto& entry : option.spec->default_for()) {
    if (entry.value().empty()) continue;  // No value; the help says what that means.
    absl::StrAppend(&text, "; ", entry.value(), " for ", RoleName(entry.role()));
  }
  return text;
}

std::string HelpSentences(const Option& option) {
  std::string text = option.spec->help();
  for (const std::string& variable : option.spec->other_variable()) {
    absl::StrAppend(&text, " The variable ", variable, " is taken as well.");
  }
  return text;
}

std::string FactsText(const Option& option) {
  std::vector<std::string> facts;
  const bool ranged = option.is_number() || option.spec->fraction();
  if (ranged && option.spec->allowed().empty()) facts.push_back(RangeText(option));
  if (!option.spec->unit().empty()) {
    if (facts.empty()) {
      facts.push_back(option.spec->unit());
    } else {
      absl::StrAppend(&facts.back(), " ", option.spec->unit());
    }
  }
  const std::string defaults = DefaultsText(option);
  if (!defaults.empty()) facts.push_back(absl::StrCat("default ", defaults));
  return absl::StrJoin(facts, "; ");
}

}  // namespace baton::config
