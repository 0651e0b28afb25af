// The Unicode properties that tokenizers depend on, over ICU. Any thread; no state.
#ifndef COMMON_TOKENIZER_WORDS_UNICODE_H_
#define COMMON_TOKENIZER_WORDS_UNICODE_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// `text` must be well-formed.
absl::StatusOr<std::string> ToNormalForm(NormalForm form, std::string_view text);
inline absl::StatusOr<std::string> ToNfc(std::string_view text) {
  return ToNormalForm(NormalForm::kNfc, text);
}

// Every character of well-formed `text` in its lower case, whatever stands around it.
std::string ToLowercase(std::string_view text);

// Well-formed `text` without the characters of general category M.
std::string WithoutMarks(std::string_view text);

// The White_Space property: what `\s` is to Oniguruma and to Rust's regex crate.
bool IsWhiteSpace(char32_t code_point);

// The bytes of the characters at the beginning of `text` that pass `test`, a condition on code
// points.
template <typename Test>
size_t LeadingBytes(std::string_view text, const Test& test) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const Utf8Step step = NextUtf8(text.substr(bytes));
    if (!test(step.code_point)) break;
    bytes += step.length;
  }
  return bytes;
}

// Where those at the end of well-formed `text` begin.
template <typename Test>
size_t TrailingBegin(std::string_view text, const Test& test) {
  while (!text.empty()) {
    const size_t last = LastCharacter(text);
    if (!test(NextUtf8(text.substr(last)).code_point)) break;
    text = text.substr(0, last);
  }
  return text.size();
}

// The members of a regular expression's class that matches exactly White_Space. PCRE2's own `\s`
// is something else: it takes U+180E for a space.
inline constexpr std::string_view kWhiteSpaceClass =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// What `\w` is to Rust's regex crate (Unicode's UTS #18, annex C).
bool IsWordCharacter(char32_t code_point);

}  // namespace baton

#endif  // COMMON_TOKENIZER_WORDS_UNICODE_H_
