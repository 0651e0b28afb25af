// What templates may call: functions, filters, tests, methods.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_BUILTINS_H_
#define COMMON_TOKENIZER_CHAT_JINJA_BUILTINS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/budget.h"
#include "common/tokenizer/chat/jinja/value.h"

namespace baton::jinja {

// A row of a table of what has a name.
template <typename T>
struct Named {
  std::string_view name;
  T value;
};
// T() for a name that `table` has not.
template <typename T, size_t kCount>
T FindNamed(const Named<T> (&table)[kCount], std::string_view name) {
  for (const Named<T>& row : table) {
    if (row.name == name) return row.value;
  }
  return T();
}

// ---- Functions: range, dict, namespace, joiner, raise_exception and strftime_now ----

// Undefined for a name that is none.
Value FindFunction(const std::string& name);

// ---- Filters and tests, those of Jinja that chat templates use ----

using Filter = absl::StatusOr<Value> (*)(Evaluator&, const Value& input, const Arguments&);
using Test = absl::StatusOr<bool> (*)(Evaluator&, const Value& input, const Arguments&);

// nullptr for a name that is none.
Filter FindFilter(std::string_view name);
Test FindTest(std::string_view name);

// Parts of the table, by what they work on: strings, numbers and values as text; lists and dicts;
// lists by way of other filters and tests.
Filter FindTextFilter(std::string_view name);
Filter FindSequenceFilter(std::string_view name);
Filter FindSelectingFilter(std::string_view name);

// ---- Attributes that filters are told by a string: "function.name", "items.0" ----

// What `path`, a string or an integer, leads to from `item`; `item` itself if it is undefined or
// None.
absl::StatusOr<Value> AtPath(Evaluator& evaluator, const Value& item, const Value& path);

// What `item` is sorted by: itself or what `path` leads to, or of several paths with commas between
// them a list; strings in lower case unless `case_sensitive`.
absl::StatusOr<Value> SortKey(Evaluator& evaluator, const Value& item, const Value& path,
                              bool case_sensitive);

// ---- Attributes, elements, slices and methods of strings, lists, dicts and loops ----

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

#endif  // COMMON_TOKENIZER_CHAT_JINJA_BUILTINS_H_
