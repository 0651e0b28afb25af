// The YAML source: one flat mapping from option names to scalars. The only file that includes
// yaml-cpp, and the place where its exceptions end.
#include <yaml-cpp/yaml.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/spelling.h"
#include "common/base/status.h"
#include "common/config/option_sources.h"

namespace baton::config {
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
