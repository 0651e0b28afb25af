// Tokens to a tree, as Jinja's own parser reads them.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_PARSER_H_
#define COMMON_TOKENIZER_CHAT_JINJA_PARSER_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/ast.h"

namespace baton::jinja {

// InvalidArgument, with the line: for what is no template, for statements that reach outside of it
// (include, import, extends), and for nesting without end.
absl::StatusOr<std::vector<Statement>> Parse(std::string_view source);

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_PARSER_H_
