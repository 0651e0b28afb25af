// JSON whose objects keep the order of their members, since a schema's properties are written in
// it.
#ifndef COMMON_GRAMMAR_JSON_TREE_H_
#define COMMON_GRAMMAR_JSON_TREE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::grammar {

struct JsonTree {
  enum class Kind : uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool truth = false;
  bool whole = false;  // kNumber: an integer of 64 bits, `integer`.
  int64_t integer = 0;
  double number = 0;
  std::string text;  // kString; kNumber: as it is written.
  std::vector<JsonTree> items;
  std::vector<std::pair<std::string, JsonTree>> members;

  const JsonTree* Find(std::string_view key) const;
  bool Is(Kind of) const { return kind == of; }
  bool IsText(std::string_view wanted) const { return kind == Kind::kString && text == wanted; }
  bool operator==(const JsonTree&) const = default;
};

// INVALID_ARGUMENT for what is not JSON, is nested deeper than 64, or has a key twice.
absl::StatusOr<JsonTree> ParseJsonTree(std::string_view text);

// `text` as a string of JSON, with its quotes.
std::string JsonQuoted(std::string_view text);

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_JSON_TREE_H_
