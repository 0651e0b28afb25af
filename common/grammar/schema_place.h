// Where in a document a schema stands, and how its values are written there.
#ifndef COMMON_GRAMMAR_SCHEMA_PLACE_H_
#define COMMON_GRAMMAR_SCHEMA_PLACE_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/strings.h"

namespace baton::grammar {

enum class Spelling {
  kJson,
  kArguments,  // An object's members as ArgumentRules writes them.
  kBareText,   // A string without quotes, as ArgumentRules writes it.
};

struct SchemaPlace {
  static constexpr size_t kMaxShownKey = 64;

  std::string path;  // For messages; empty: the document itself.
  int depth = 0;
  Spelling spelling = Spelling::kJson;

  // A schema of the same value; `key` names it, unless it is empty.
  SchemaPlace Way(std::string_view key) const { return {PathOf(key), depth + 1, spelling}; }
  // The schema of a part of the value.
  SchemaPlace Part(std::string_view key, Spelling of = Spelling::kJson) const {
    return {PathOf(key), depth + 1, of};
  }
  std::string PathOf(std::string_view key) const {
    if (key.empty()) return path;
    return path.empty() ? std::string(key.substr(0, kMaxShownKey))
                        : Concat(path, ".", key.substr(0, kMaxShownKey));
  }
  absl::Status Wrong(std::string_view what) const {
    return absl::InvalidArgumentError(path.empty() ? std::string(what) : Concat(path, ": ", what));
  }
};

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_SCHEMA_PLACE_H_
