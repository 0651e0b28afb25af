#include "common/grammar/json_tree.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/strings.h"

namespace baton::grammar {
namespace {

using Json = nlohmann::json;
using Kind = JsonTree::Kind;

constexpr size_t kMaxDepth = 64;

class Reader : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Put({}); }
  bool boolean(bool value) override { return Put({.kind = Kind::kBool, .truth = value}); }
  bool number_integer(int64_t value) override {
    return Put({.kind = Kind::kNumber,
                .whole = true,
                .integer = value,
                .number = static_cast<double>(value),
                .text = std::to_string(value)});
  }
  bool number_unsigned(uint64_t value) override {
    if (value <= uint64_t{INT64_MAX}) return number_integer(static_cast<int64_t>(value));
    return Put({.kind = Kind::kNumber,
                .number = static_cast<double>(value),
                .text = std::to_string(value)});
  }
  bool number_float(double value, const std::string& text) override {
    // 3.0 is an integer to JSON Schema.
    const bool whole =
        value == static_cast<double>(static_cast<int64_t>(std::clamp(value, -9e15, 9e15)));
    return Put({.kind = Kind::kNumber,
                .whole = whole,
                .integer = whole ? static_cast<int64_t>(value) : 0,
                .number = value,
                .text = text});
  }
  bool string(std::string& value) override {
    return Put({.kind = Kind::kString, .text = std::move(value)});
  }
  bool binary(Json::binary_t&) override { return Fail("is no JSON"); }
  bool start_object(std::size_t) override { return Open(Kind::kObject); }
  bool start_array(std::size_t) override { return Open(Kind::kArray); }
  bool end_array() override { return Close(); }
  bool end_object() override {
    absl::flat_hash_set<std::string> keys;
    for (const auto& [key, value] : open_.back().members) {
      if (keys.insert(key).second) continue;
      return Fail(absl::StrCat("the key \"", key, "\" stands twice"));
    }
    return Close();
  }
  bool key(std::string& key) override {
    keys_.back() = std::move(key);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    if (error_.empty()) {
      error_ = absl::StrCat("not valid JSON at byte ", position, ": ", error.what());
    }
    return false;
  }

  const std::string& error() const { return error_; }
  JsonTree Take() { return std::move(root_); }

 private:
  bool Fail(std::string what) {
    error_ = std::move(what);
    return false;
  }
  bool Open(Kind kind) {
    if (open_.size() >= kMaxDepth) {
      return Fail(absl::StrCat("nested deeper than ", kMaxDepth));
    }
    open_.push_back({.kind = kind});
    keys_.emplace_back();
    return true;
  }
  bool Close() {
    JsonTree done = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    return Put(std::move(done));
  }
  bool Put(JsonTree value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().kind == Kind::kArray) {
      open_.back().items.push_back(std::move(value));
    } else {
      open_.back().members.emplace_back(std::move(keys_.back()), std::move(value));
    }
    return true;
  }

  JsonTree root_;
  std::vector<JsonTree> open_;
  std::vector<std::string> keys_;  // The last one of each open object.
  std::string error_;
};

}  // namespace

const JsonTree* JsonTree::Find(std::string_view key) const {
  const auto it = std::find_if(members.begin(), members.end(),
                               [&](const auto& member) { return member.first == key; });
  return it == members.end() ? nullptr : &it->second;
}

absl::StatusOr<JsonTree> ParseJsonTree(std::string_view text) {
  Reader reader;
  if (Json::sax_parse(text, &reader)) return reader.Take();
  return absl::InvalidArgumentError(reader.error());
}

std::string JsonQuoted(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace baton::grammar
