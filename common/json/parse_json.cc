#include "common/json/parse_json.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
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

// Finds a key that stands twice in one object: nlohmann keeps the last one, other readers the
// first. A pass of its own, for a parser with a callback goes through all members of the outer
// object at the end of each inner one: minutes for the header of a checkpoint with 36,000 tensors.
class DuplicateFinder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool start_object(size_t) override {
    open_objects_.emplace_back();
    return true;
  }
  bool end_object() override {
    open_objects_.pop_back();
    return true;
  }
  bool key(std::string& key) override {
    if (open_objects_.back().insert(key).second) return true;
    duplicate_ = std::move(key);
    return false;
  }
  bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }

  const std::optional<std::string>& duplicate() const { return duplicate_; }

 private:
  std::vector<absl::flat_hash_set<std::string>> open_objects_;
  std::optional<std::string> duplicate_;
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
  try {
    Json json = Json::parse(text);
    if (duplicates == DuplicateKeys::kKeepLast) return json;
    DuplicateFinder finder;
    Json::sax_parse(text, &finder);
    if (finder.duplicate().has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Prefix(name), "the key \"", *finder.duplicate(), "\" stands twice"));
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
