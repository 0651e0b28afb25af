// String literals of templates, whose escapes are Python's.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_STRING_LITERAL_H_
#define COMMON_TOKENIZER_CHAT_JINJA_STRING_LITERAL_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton::jinja {

// `body` is what stands between the quotes. InvalidArgument for an escape that stands for no
// character; one that Python doesn't know stays as it is, with its backslash.
absl::StatusOr<std::string> ResolveEscapes(std::string_view body);

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_STRING_LITERAL_H_
