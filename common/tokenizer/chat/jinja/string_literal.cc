#include "common/tokenizer/chat/jinja/string_literal.h"

#include <charconv>
#include <cstddef>
#include <cstdint>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/words/utf8.h"

namespace baton::jinja {
namespace {

constexpr std::string_view kSimple = "\\'\"abfnrtv";
constexpr std::string_view kSimpleValues = "\\'\"\a\b\f\n\r\t\v";

absl::Status AppendScalar(uint32_t code_point, std::string* text) {
  if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point <= 0xDFFF)) {
    return absl::InvalidArgumentError("an escape in a string stands for no character");
  }
  AppendCodePoint(code_point, text);
  return absl::OkStatus();
}

// \xNN, \uNNNN and \UNNNNNNNN; `*at` stands on the digits.
absl::Status AppendHex(std::string_view body, size_t digits, size_t* at, std::string* text) {
  const std::string_view hex = body.substr(*at, digits);
  uint32_t code_point = 0;
  const auto read = std::from_chars(hex.data(), hex.data() + hex.size(), code_point, 16);
  if (hex.size() != digits || read.ptr != hex.data() + hex.size()) {
    return absl::InvalidArgumentError(
        Concat("an escape in a string needs ", digits, " hexadecimal digits"));
  }
  *at += digits;
  return AppendScalar(code_point, text);
}

}  // namespace

absl::StatusOr<std::string> ResolveEscapes(std::string_view body) {
  std::string text;
  text.reserve(body.size());
  size_t at = 0;
  while (at < body.size()) {
    const char c = body[at++];
    if (c != '\\' || at == body.size()) {
      text.push_back(c);
      continue;
    }
    const char escape = body[at++];
    if (const size_t simple = kSimple.find(escape); simple != std::string_view::npos) {
      text.push_back(kSimpleValues[simple]);
    } else if (escape == '\n') {
      // The literal goes on in the next line.
    } else if (escape == 'x' || escape == 'u' || escape == 'U') {
      const size_t digits = escape == 'x' ? 2 : escape == 'u' ? 4 : 8;
      BATON_RETURN_IF_ERROR(AppendHex(body, digits, &at, &text));
    } else if (escape >= '0' && escape <= '7') {
      uint32_t code_point = static_cast<uint32_t>(escape - '0');
      for (int i = 0; i < 2 && at < body.size() && body[at] >= '0' && body[at] <= '7'; ++i) {
        code_point = code_point * 8 + static_cast<uint32_t>(body[at++] - '0');
      }
      BATON_RETURN_IF_ERROR(AppendScalar(code_point, &text));
    } else if (escape == 'N') {
      return absl::InvalidArgumentError("characters by name (\\N) are not supported");
    } else {
      text.push_back('\\');
      text.push_back(escape);
    }
  }
  return text;
}

}  // namespace baton::jinja
