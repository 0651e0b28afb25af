#include "services/router/http/json_input.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/json/parse_json.h"

namespace baton::router {

absl::StatusOr<Json> ParseObject(std::string_view text) {
  BATON_ASSIGN_OR_RETURN(Json value, ParseJson(text, "the body", DuplicateKeys::kKeepLast));
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the body must be a JSON object, got ", Describe(value)));
  }
  return value;
}

std::string Describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::array:
      return value.empty() ? "an empty list" : "a list";
    case Json::value_t::object:
      return value.empty() ? "an empty object" : "an object";
    default:
      return value.dump();  // A number says more than its type.
  }
}

const Json* Fields::Find(const std::string& name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

absl::Status Fields::Wrong(const std::string& name, const std::string& expected) const {
  const Json* value = Find(name);
  return InvalidField(Path(name), absl::StrCat("must be ", expected, ", got ",
                                               value == nullptr ? "nothing" : Describe(*value)));
}

absl::StatusOr<std::optional<std::string>> Fields::String(const std::string& name) const {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return Wrong(name, "a string");
  return value->get<std::string>();
}

absl::StatusOr<int64_t> IntegerValue(const Json& value, const std::string& path) {
  const bool too_large = value.is_number_unsigned() &&
                         value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  if (!value.is_number_integer() || too_large) {
    return InvalidField(path, absl::StrCat("must be an integer, got ", Describe(value)));
  }
  return value.get<int64_t>();
}

absl::StatusOr<std::optional<int64_t>> Fields::Integer(const std::string& name) const {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  BATON_ASSIGN_OR_RETURN(const int64_t number, IntegerValue(*value, Path(name)));
  return number;
}

absl::StatusOr<std::optional<double>> Fields::Number(const std::string& name) const {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) return Wrong(name, "a number");
  return value->get<double>();
}

absl::StatusOr<std::optional<bool>> Fields::Bool(const std::string& name) const {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return Wrong(name, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::optional<uint64_t>> Fields::Seed(const std::string& name) const {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) return Wrong(name, "an integer from 0 to 2^64 - 1");
  // Unsigned values are read as they are, signed ones wrap.
  return value->is_number_unsigned() ? value->get<uint64_t>()
                                     : static_cast<uint64_t>(value->get<int64_t>());
}

absl::StatusOr<std::optional<std::vector<int64_t>>> Fields::Integers(
    const std::string& name) const {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) return Wrong(name, "a list of integers");
  std::vector<int64_t> numbers;
  numbers.reserve(value->size());
  for (const Json& element : *value) {
    BATON_ASSIGN_OR_RETURN(const int64_t number, IntegerValue(element, Path(name)));
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<std::optional<std::vector<std::string>>> Fields::Strings(
    const std::string& name) const {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::vector<std::string>{value->get<std::string>()};
  if (!value->is_array()) return Wrong(name, "a string or a list of strings");
  std::vector<std::string> texts;
  for (const Json& element : *value) {
    if (!element.is_string()) return Wrong(name, "a string or a list of strings");
    texts.push_back(element.get<std::string>());
  }
  return texts;
}

absl::StatusOr<std::string> Fields::OneOf(const std::vector<const char*>& spellings) const {
  std::string found;
  for (const char* spelling : spellings) {
    if (Find(spelling) == nullptr) continue;
    if (!found.empty() && *Find(found) != *Find(spelling)) {
      return InvalidField(Path(spelling),
                          absl::StrCat("differs from ", found, "; give one of the two"));
    }
    if (found.empty()) found = spelling;
  }
  return found.empty() ? std::string(spellings.front()) : found;
}

}  // namespace baton::router
