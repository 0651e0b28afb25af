// Values as text: str() and repr() are declared in operations.h; here is what Python's formatting
// of strings makes of them.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_FORMAT_H_
#define COMMON_TOKENIZER_CHAT_JINJA_FORMAT_H_

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/budget.h"
#include "common/tokenizer/chat/jinja/value.h"

namespace baton::jinja {

// `format % values`: a tuple gives several values, a dict named ones. Knows s, r, d, i, u, x, X,
// o, c, e, E, f, F, g, G, flags, width and precision.
absl::StatusOr<Text> FormatPercent(const Text& format, const Value& values, Budget& budget);

// format.format(*positional, **named), whose fields may have an index, a name, !s or !r, and a
// width, precision and type.
absl::StatusOr<Text> FormatBraces(const Text& format, const Arguments& values, Budget& budget);

// '"text"' or "'text'" with escapes, as Python's repr.
void AppendQuoted(const Text& text, Text* out);

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_FORMAT_H_
