// Attributes that filters are told by a string: "function.name", "items.0".
#ifndef COMMON_TOKENIZER_CHAT_JINJA_ATTRIBUTE_PATH_H_
#define COMMON_TOKENIZER_CHAT_JINJA_ATTRIBUTE_PATH_H_

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/value.h"

namespace baton::jinja {

// What `path`, a string or an integer, leads to from `item`; `item` itself if it is undefined or
// None.
absl::StatusOr<Value> AtPath(Evaluator& evaluator, const Value& item, const Value& path);

// What `item` is sorted by: itself or what `path` leads to, or of several paths with commas between
// them a list; strings in lower case unless `case_sensitive`.
absl::StatusOr<Value> SortKey(Evaluator& evaluator, const Value& item, const Value& path,
                              bool case_sensitive);

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_ATTRIBUTE_PATH_H_
