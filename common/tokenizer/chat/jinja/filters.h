// The filters and tests of Jinja that chat templates use.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_FILTERS_H_
#define COMMON_TOKENIZER_CHAT_JINJA_FILTERS_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/value.h"

namespace baton::jinja {

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

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_FILTERS_H_
