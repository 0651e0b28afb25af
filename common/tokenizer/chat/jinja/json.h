// JSON to values and back: what a client sends, and the filter tojson as transformers defines it.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_JSON_H_
#define COMMON_TOKENIZER_CHAT_JINJA_JSON_H_

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/budget.h"
#include "common/tokenizer/chat/jinja/value.h"

namespace baton::jinja {

// Keys keep their order; every string, keys too, is marked as `origin`. InvalidArgument for what is
// not JSON, nests deeper than Value::kMaxDepth, or has an integer past 64 bits. With `members` only
// these of the outermost object are taken; what the others hold is no matter.
absl::StatusOr<Value> ParseJsonValue(std::string_view text, Origin origin,
                                     std::initializer_list<std::string_view> members = {});

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // What one level is indented by; none: one line.
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

// As Python's json.dumps. InvalidArgument for a value that JSON has no form of.
absl::StatusOr<Text> ToJson(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_JSON_H_
