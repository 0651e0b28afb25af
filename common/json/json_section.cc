#include "common/json/json_section.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton {

using Json = nlohmann::json;

JsonSection::JsonSection(JsonText text, const Json& document, const char* name)
    : text_(std::move(text)), name_(name) {
  const auto found = name_.empty() ? document.end() : document.find(name_);
  TakeObject(name_.empty() ? &document : found == document.end() ? nullptr : &*found);
}

JsonSection::JsonSection(JsonText text, const Json& list, const char* name, size_t index)
    : text_(std::move(text)),
      list_(name),
      index_(index),
      name_(absl::StrCat(name, "[", index, "]")) {
  TakeObject(&list.at(index));
}

void JsonSection::TakeObject(const Json* object) {
  object_ = object;
  if (object == nullptr) {
    Fail("", "is missing");
  } else if (!object->is_object()) {
    Fail("", "is no object");
  }
}

void JsonSection::Number(const char* key, double low, double high, std::optional<double> otherwise,
                         double& value) {
  const Json* const found = Find(key, otherwise.has_value());
  if (found == nullptr) {
    value = otherwise.value_or(0);
  } else if (!found->is_number()) {
    Fail(key, absl::StrCat("is ", found->dump(), ", expected a number"));
  } else if (value = found->get<double>(); !(value >= low && value <= high)) {
    Fail(key, absl::StrCat("is ", found->dump(), ", expected ", low, " to ", high));
  }
}

void JsonSection::Int(const char* key, int64_t low, int64_t high, std::optional<int64_t> otherwise,
                      int64_t& value) {
  const Json* const found = Find(key, otherwise.has_value());
  if (found == nullptr) {
    value = otherwise.value_or(0);
  } else if (!found->is_number_integer() || *found < low || *found > high) {
    Fail(key,
         absl::StrCat("is ", found->dump(), ", expected a whole number from ", low, " to ", high));
  } else {
    value = found->get<int64_t>();
  }
}

void JsonSection::Int(const char* key, int low, int high, std::optional<int> otherwise,
                      int& value) {
  int64_t wide = 0;
  Int(key, int64_t{low}, int64_t{high}, std::optional<int64_t>(otherwise), wide);
  value = static_cast<int>(wide);
}

void JsonSection::Text(const char* key, bool optional, std::string& value) {
  const Json* const found = Find(key, optional);
  if (found == nullptr) return;
  if (!found->is_string()) return Fail(key, "is no string");
  value = found->get<std::string>();
}

void JsonSection::Only(std::initializer_list<const char*> keys) {
  if (!status_.ok()) return;
  for (const auto& item : object_->items()) {
    const bool known =
        std::any_of(keys.begin(), keys.end(), [&](const char* key) { return item.key() == key; });
    if (known) continue;
    return Fail(item.key(), absl::StrCat("is unknown; known are ", absl::StrJoin(keys, ", ")));
  }
}

void JsonSection::Fail(const std::string& key, const std::string& what) {
  if (!status_.ok()) return;
  const std::string dot = name_.empty() || key.empty() ? "" : ".";
  status_ = absl::InvalidArgumentError(
      absl::StrCat(text_.file, ": line ", LineOf(key), ": \"", name_, dot, key, "\" ", what));
}

const Json* JsonSection::Find(const char* key, bool optional) {
  if (!status_.ok()) return nullptr;
  const auto found = object_->find(key);
  if (found != object_->end()) return &*found;
  if (!optional) Fail(key, "is missing");
  return nullptr;
}

// The 1-based line of the first `"key"` after the section's begin. An object has each key only
// once.
int JsonSection::LineOf(std::string_view key) const {
  const std::string_view text = text_.text;
  size_t at = 0;
  const auto go_behind = [&](const std::string& word) {
    const size_t found = text.find(word, at);
    if (found != std::string_view::npos) at = found;
  };
  const auto quoted = [](std::string_view word) {
    return absl::StrCat("\"", std::string(word), "\"");
  };
  const std::string& section = list_.empty() ? name_ : list_;
  if (!section.empty()) go_behind(quoted(section));
  for (size_t i = 0; !list_.empty() && i <= index_; ++i) {
    ++at;
    go_behind("{");
  }
  if (!key.empty()) go_behind(quoted(key));
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(at);
  return 1 + static_cast<int>(std::count(text.begin(), end, '\n'));
}

}  // namespace baton
