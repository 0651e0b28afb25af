// UTF-8, one character at a time, with the error handling that both HTTP and detokenization need.
// Any thread; no state.
#ifndef COMMON_TOKENIZER_WORDS_UTF8_H_
#define COMMON_TOKENIZER_WORDS_UTF8_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

// U+FFFD, what an ill-formed sequence is replaced by.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

struct Utf8Step {
  enum class Kind {
    kCharacter,  // a well-formed character of `length` bytes
    kIllFormed,  // `length` bytes that can't be part of any character (Unicode's maximal subpart)
    kTruncated,  // the text ends inside a character that may still become well-formed
  };
  Kind kind;
  size_t length;        // bytes, at least 1
  char32_t code_point;  // of a kCharacter
};

// Looks at the beginning of `text`, which must not be empty.
Utf8Step NextUtf8(std::string_view text);

// The byte offset of the last character of well-formed, non-empty `text`.
size_t LastCharacter(std::string_view text);

// The byte offset of the first ill-formed or truncated sequence; none if `text` is well-formed.
std::optional<size_t> FirstInvalidUtf8(std::string_view text);

// Characters (code points) of well-formed `text`.
size_t CountCharacters(std::string_view text);

// Appends the well-formed characters at the beginning of `bytes` to `text`, each ill-formed
// sequence as U+FFFD. Stops at a truncated character and returns how many bytes were consumed.
size_t AppendCharacters(std::string_view bytes, std::string* text);

// Appends the UTF-8 form of `code_point`, which must be a Unicode scalar value.
void AppendCodePoint(char32_t code_point, std::string* text);

}  // namespace baton

#endif  // COMMON_TOKENIZER_WORDS_UTF8_H_
