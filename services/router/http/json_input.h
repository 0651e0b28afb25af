// Strict reading of a client's JSON: bounded depth, exact types, errors that name the field and say
// what was found and what was expected.
#ifndef SERVICES_ROUTER_HTTP_JSON_INPUT_H_
#define SERVICES_ROUTER_HTTP_JSON_INPUT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::router {

using Json = nlohmann::json;

// A JSON object. INVALID_ARGUMENT for what is none, is nested deeper than 32, has ill-formed UTF-8,
// or has a number that no double holds.
absl::StatusOr<Json> ParseObject(std::string_view text);

// What `value` is, for messages: "a string", "an integer", "null", ...
std::string Describe(const Json& value);

// Typed members of one object. Absent and null are the same: nullopt. `path` stands before the
// names in errors, e.g. "messages[0].".
class Fields {
 public:
  explicit Fields(const Json& object, std::string path = "")
      : object_(object), path_(std::move(path)) {}

  absl::StatusOr<std::optional<std::string>> String(const std::string& name) const;
  absl::StatusOr<std::optional<int64_t>> Integer(const std::string& name) const;
  absl::StatusOr<std::optional<double>> Number(const std::string& name) const;
  absl::StatusOr<std::optional<bool>> Bool(const std::string& name) const;
  // An integer from -2^63 to 2^64 - 1; a negative one is taken modulo 2^64.
  absl::StatusOr<std::optional<uint64_t>> Seed(const std::string& name) const;
  absl::StatusOr<std::optional<std::vector<int64_t>>> Integers(const std::string& name) const;
  // One string, or a list of them.
  absl::StatusOr<std::optional<std::vector<std::string>>> Strings(const std::string& name) const;
  // The one of several spellings of a field that the object has; the first if it has none.
  // INVALID_ARGUMENT if it has two with different values.
  absl::StatusOr<std::string> OneOf(const std::vector<const char*>& spellings) const;
  const Json* Find(const std::string& name) const;  // nullptr if absent or null.

  const Json& object() const { return object_; }
  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const { return path_ + name; }
  absl::Status Wrong(const std::string& name, const std::string& expected) const;

 private:
  const Json& object_;
  std::string path_;
};

// A list element that must be an integer: {3} but not {3.5} or {"3"}.
absl::StatusOr<int64_t> IntegerValue(const Json& value, const std::string& path);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_JSON_INPUT_H_
