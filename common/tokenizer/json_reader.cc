#include "common/tokenizer/json_reader.h"

#include <algorithm>

#include "common/base/strings.h"

namespace baton {
namespace {

const nlohmann::json kNull;

constexpr size_t kExcerptBytes = 60;

}  // namespace

JsonReader JsonReader::operator[](std::string_view key) const {
  std::string path = path_.empty() ? std::string(key) : Concat(path_, ".", key);
  if (!value_->is_object()) return {&kNull, std::move(path)};
  const auto found = value_->find(std::string(key));
  return {found == value_->end() ? &kNull : &*found, std::move(path)};
}

JsonReader JsonReader::operator[](size_t index) const {
  return {&(*value_)[index], Concat(path_, "[", index, "]")};
}

absl::StatusOr<std::string> JsonReader::String() const {
  if (!value_->is_string()) return Malformed("a string");
  return value_->get<std::string>();
}

absl::StatusOr<bool> JsonReader::Bool(std::optional<bool> if_missing) const {
  if (value_->is_null() && if_missing.has_value()) return *if_missing;
  if (!value_->is_boolean()) return Malformed("true or false");
  return value_->get<bool>();
}

absl::StatusOr<int32_t> JsonReader::Id(int32_t limit) const {
  // A non-negative literal is unsigned to nlohmann; a negative one or one beyond 64 bits is not.
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() >= static_cast<uint64_t>(limit)) {
    return Malformed(Concat("an integer from 0 to ", limit - 1));
  }
  return value_->get<int32_t>();
}

absl::Status JsonReader::ExpectObject() const {
  return value_->is_object() ? absl::OkStatus() : Malformed("an object");
}

absl::Status JsonReader::ExpectArray() const {
  return value_->is_array() ? absl::OkStatus() : Malformed("an array");
}

absl::Status JsonReader::ExpectKeys(std::initializer_list<std::string_view> known) const {
  if (absl::Status status = ExpectObject(); !status.ok()) return status;
  for (const auto& [key, unused] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return absl::UnimplementedError(
          Concat(path_.empty() ? "" : path_ + ".", key, ": unknown key"));
    }
  }
  return absl::OkStatus();
}

absl::Status JsonReader::Malformed(std::string_view expected) const {
  return absl::InvalidArgumentError(Concat(path_, ": is ", Excerpt(), "; expected ", expected));
}

absl::Status JsonReader::Unsupported(std::string_view supported) const {
  return absl::UnimplementedError(Concat(path_, ": is ", Excerpt(), "; supported: ", supported));
}

std::string JsonReader::Excerpt() const {
  if (value_->is_null()) return "missing or null";
  if (value_->is_object()) return "an object";
  if (value_->is_array()) return "an array";
  std::string text = value_->dump(-1, ' ', /*ensure_ascii=*/true);
  if (text.size() > kExcerptBytes) text = Concat(text.substr(0, kExcerptBytes), "...");
  return text;
}

}  // namespace baton
