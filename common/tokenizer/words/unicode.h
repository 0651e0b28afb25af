// The Unicode properties that tokenizers depend on, over ICU. Any thread; no state.
#ifndef COMMON_TOKENIZER_WORDS_UNICODE_H_
#define COMMON_TOKENIZER_WORDS_UNICODE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

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

// The members of a regular expression's class that matches exactly White_Space. PCRE2's own `\s`
// is something else: it takes U+180E for a space.
inline constexpr std::string_view kWhiteSpaceClass =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// What `\w` is to Rust's regex crate (Unicode's UTS #18, annex C).
bool IsWordCharacter(char32_t code_point);

}  // namespace baton

#endif  // COMMON_TOKENIZER_WORDS_UNICODE_H_
