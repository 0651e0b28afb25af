// Attributes, elements, slices and methods of strings, lists, dicts and loops.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_METHODS_H_
#define COMMON_TOKENIZER_CHAT_JINJA_METHODS_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/budget.h"
#include "common/tokenizer/chat/jinja/value.h"

namespace baton::jinja {

enum class MethodKind {
  kNone,
  kAllowed,
  kForbidden,  // It would change a list or a dict.
};

MethodKind MethodOf(const Value& object, std::string_view name);
// For a method that is allowed.
absl::StatusOr<Value> CallMethod(Evaluator& evaluator, const Value& object, std::string_view name,
                                 const Arguments& arguments);

// object[start:stop:step], where what is not given is Python's default.
absl::StatusOr<Value> Slice(const Value& object, std::optional<int64_t> start,
                            std::optional<int64_t> stop, std::optional<int64_t> step,
                            Budget& budget);

bool IsStringMethod(std::string_view name);
absl::StatusOr<Value> CallStringMethod(Evaluator& evaluator, const Text& text,
                                       std::string_view name, const Arguments& arguments);

// text.splitlines(keep_ends).
std::vector<Text> Lines(const Text& text, bool keep_ends);
// text.replace(old, with, most); most < 0: all.
Text ReplaceAll(const Text& text, std::string_view old, const Text& with, int64_t most);

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_METHODS_H_
