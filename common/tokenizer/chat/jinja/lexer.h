// Cuts the source of a template into tokens, as Jinja does with the settings of transformers:
// trim_blocks, lstrip_blocks and no newline kept at the end.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_LEXER_H_
#define COMMON_TOKENIZER_CHAT_JINJA_LEXER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::jinja {

struct Token {
  enum class Kind {
    kText,           // what stands outside of tags; `text`
    kBlockBegin,     // {%
    kBlockEnd,       // %}
    kVariableBegin,  // {{
    kVariableEnd,    // }}
    kName,           // `text`
    kString,         // `text`, escapes resolved
    kInteger,        // `integer`
    kFloat,          // `number`
    kOperator,       // `text`
    kEnd,            // the last one
  };
  Kind kind = Kind::kEnd;
  int line = 1;
  std::string text;
  int64_t integer = 0;
  double number = 0;

  bool Is(Kind wanted, std::string_view wanted_text) const {
    return kind == wanted && text == wanted_text;
  }
};

// The longest source that is accepted.
inline constexpr size_t kMaxSourceBytes = 1 << 20;

// InvalidArgument, with the line, for what no template may contain.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

// "line 3: what".
absl::Status ErrorAt(int line, std::string_view what);

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_LEXER_H_
