#include "common/json/parse_json.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using Json = nlohmann::json;

// Deepest nesting of brackets outside strings; malformed text is the parser's to refuse.
int NestingDepth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

// Finds keys that stand twice in one object: nlohmann keeps the last one, other readers the first.
class DuplicateFinder {
 public:
  bool operator()(int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      open_objects_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open_objects_.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects_.back().insert(key).second) duplicate_ = key;
    }
    return true;
  }
  const std::string* duplicate() const { return duplicate_.empty() ? nullptr : &duplicate_; }

 private:
  std::vector<std::set<std::string>> open_objects_;
  std::string duplicate_;
};

std::string Prefix(const std::string& name) { return name.empty() ? "" : name + ": "; }

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, const std::string& name,
                               DuplicateKeys duplicates) {
  // Checked before parsing: a document of a million brackets must not grow a million nodes.
  const int depth = NestingDepth(text);
  if (depth > kMaxJsonDepth) {
    return absl::InvalidArgumentError(absl::StrCat(Prefix(name), "JSON is nested ", depth,
                                                   " levels deep; at most ", kMaxJsonDepth,
                                                   " are accepted"));
  }
  DuplicateFinder keys;
  try {
    if (duplicates == DuplicateKeys::kKeepLast) return Json::parse(text);
    Json json = Json::parse(text, std::ref(keys));
    if (keys.duplicate() != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(Prefix(name), "the key \"", *keys.duplicate(), "\" stands twice"));
    }
    return json;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(Prefix(name), "not valid JSON: ", error.what()));
  }
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t bytes_max) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": no such file, or not readable"));
  std::string text;
  char block[4096];
  while (file.read(block, sizeof(block)) || file.gcount() > 0) {
    text.append(block, static_cast<size_t>(file.gcount()));
    if (text.size() > bytes_max) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": larger than the accepted ", bytes_max, " bytes"));
    }
  }
  return text;
}

}  // namespace baton
