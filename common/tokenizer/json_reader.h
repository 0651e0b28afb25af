// Checked access to JSON: each error names the key's path from the root. Internal to this package,
// so that nlohmann's header stays out of public ones.
#ifndef COMMON_TOKENIZER_JSON_READER_H_
#define COMMON_TOKENIZER_JSON_READER_H_

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

// A value and where it stands. Cheap to copy; the document must outlive it.
class JsonReader {
 public:
  explicit JsonReader(const nlohmann::json& root) : value_(&root) {}

  const std::string& path() const { return path_; }
  const nlohmann::json& value() const { return *value_; }

  // A missing key reads as null.
  JsonReader operator[](std::string_view key) const;
  JsonReader operator[](size_t index) const;
  size_t size() const { return value_->size(); }
  bool IsNull() const { return value_->is_null(); }
  bool IsString() const { return value_->is_string(); }
  bool IsObject() const { return value_->is_object(); }
  bool IsArray() const { return value_->is_array(); }

  absl::StatusOr<std::string> String() const;
  absl::StatusOr<bool> Bool(std::optional<bool> if_missing = std::nullopt) const;
  // An integer in [0, limit).
  absl::StatusOr<int32_t> Id(int32_t limit) const;

  absl::Status ExpectObject() const;
  absl::Status ExpectArray() const;
  // Refuses keys outside `known`.
  absl::Status ExpectKeys(std::initializer_list<std::string_view> known) const;

  // "`path`: is X; expected `expected`" (InvalidArgument) or "...; supported: ..." (Unimplemented).
  absl::Status Malformed(std::string_view expected) const;
  absl::Status Unsupported(std::string_view supported) const;

 private:
  JsonReader(const nlohmann::json* value, std::string path)
      : value_(value), path_(std::move(path)) {}
  std::string Excerpt() const;

  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace baton

#endif  // COMMON_TOKENIZER_JSON_READER_H_
