// What Python's operators do to values.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_OPERATIONS_H_
#define COMMON_TOKENIZER_CHAT_JINJA_OPERATIONS_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/budget.h"
#include "common/tokenizer/chat/jinja/value.h"

namespace baton::jinja {

bool IsTrue(const Value& value);
bool Equals(const Value& left, const Value& right);
// Below 0, 0 or above. InvalidArgument for types that have no order.
absl::StatusOr<int> Order(std::string_view op, const Value& left, const Value& right);
// `op` is one of == != < <= > >= in, and "not in".
absl::StatusOr<bool> Compare(std::string_view op, const Value& left, const Value& right,
                             Budget& budget);
absl::StatusOr<bool> Contains(const Value& container, const Value& item, Budget& budget);

// `op` is one of + - * / // % **. Integers have 64 bits: past them is InvalidArgument.
absl::StatusOr<Value> Arithmetic(std::string_view op, const Value& left, const Value& right,
                                 Budget& budget);
absl::StatusOr<Value> Negate(const Value& value);

// What a loop visits: elements, keys, characters. InvalidArgument for what can't be visited.
absl::StatusOr<std::shared_ptr<const List>> Iterate(const Value& value, Budget& budget);
// None for what has no length.
std::optional<int64_t> LengthOf(const Value& value);

// str(value) and repr(value), appended.
absl::Status AppendStr(const Value& value, Budget& budget, Text* text);
absl::Status AppendRepr(const Value& value, Budget& budget, Text* text);
absl::StatusOr<Text> Str(const Value& value, Budget& budget);
// A string with its work accounted for.
absl::StatusOr<Value> MakeString(Text text, Budget& budget);
absl::StatusOr<Value> MakeList(List items, Budget& budget);

std::string FloatRepr(double value);

// Undefined is refused with its reason; anything else as an operand of the wrong type.
absl::Status BadOperands(std::string_view op, const Value& left, const Value& right);

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_OPERATIONS_H_
