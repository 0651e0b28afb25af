// One object of a JSON file that people may write, read field by field: each with a range, none
// unknown. The first thing that is wrong is kept, with file, line and field.
//
//   JsonSection model({text, "toy.json"}, document, "model");
//   model.Only({"layers", "name"});
//   model.Int("layers", 1, 64, std::nullopt, layers);
//   BATON_RETURN_IF_ERROR(model.status());
//
// It parses nothing (parse_json.h does) and refers to the text and the document.
#ifndef COMMON_JSON_JSON_SECTION_H_
#define COMMON_JSON_JSON_SECTION_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace baton {

struct JsonText {
  std::string_view text;
  std::string file;
};

class JsonSection {
 public:
  // The object `name` of `document`; with an empty name the document itself.
  JsonSection(JsonText text, const nlohmann::json& document, const char* name);
  // Element `index` of `list`, the document's list `name`, whose elements hold no objects.
  JsonSection(JsonText text, const nlohmann::json& list, const char* name, size_t index);

  const absl::Status& status() const { return status_; }

  // A field that is missing takes the value `otherwise`; nullopt: it has to be there.
  void Number(const char* key, double low, double high, std::optional<double> otherwise,
              double& value);
  void Int(const char* key, int64_t low, int64_t high, std::optional<int64_t> otherwise,
           int64_t& value);
  void Int(const char* key, int low, int high, std::optional<int> otherwise, int& value);
  void Text(const char* key, bool optional, std::string& value);
  // No other key is read: it is most likely misspelt.
  void Only(std::initializer_list<const char*> keys);

  // An empty `key`: the whole object.
  void Fail(const std::string& key, const std::string& what);

 private:
  void TakeObject(const nlohmann::json* object);
  const nlohmann::json* Find(const char* key, bool optional);
  int LineOf(std::string_view key) const;

  const JsonText text_;
  const std::string list_;  // Empty: it is no list's element.
  const size_t index_ = 0;
  const std::string name_;
  const nlohmann::json* object_ = nullptr;
  absl::Status status_;
};

}  // namespace baton

#endif  // COMMON_JSON_JSON_SECTION_H_
