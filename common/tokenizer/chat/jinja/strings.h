// What Python's str does, on UTF-8: positions in characters, case, classes of characters.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_STRINGS_H_
#define COMMON_TOKENIZER_CHAT_JINJA_STRINGS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/chat/jinja/text.h"
#include "common/tokenizer/words/utf8.h"

namespace baton::jinja {

// What str.isspace() and str.strip() take for white space.
bool IsPythonSpace(char32_t code_point);

// The byte range that is left of `text` without the characters of `characters` at its ends; with
// nullptr, without white space.
size_t StripBegin(std::string_view text, const std::string* characters = nullptr);
size_t StripEnd(std::string_view text, const std::string* characters = nullptr);
Text Strip(const Text& text, bool left, bool right, const std::string* characters = nullptr);

// Characters and bytes. A position in characters has to be within the text.
int64_t LengthInCharacters(std::string_view text);
size_t ByteOffset(std::string_view text, int64_t characters);
// The byte offsets of all characters, and the size of the text.
std::vector<size_t> CharacterOffsets(std::string_view text);

enum class Case { kUpper, kLower, kCapitalize, kTitle, kJinjaTitle, kSwap };
// A text whose characters change one by one keeps the marks of clients' runs; where a character's
// form depends on its neighbours, a single client's byte marks all.
Text ChangeCase(const Text& text, Case form);
std::string Lower(std::string_view text);

// `name` is one of Python's: isalpha, isdigit, isspace... False for an unknown name.
bool HasClass(std::string_view name, std::string_view text);
bool IsClassMethod(std::string_view name);

// Appends `text` with escape(c) in the place of each character c of which that is not empty.
template <typename Escape>
void AppendEscaped(const Text& text, const Escape& escape, Text* out) {
  const std::string_view bytes = text.bytes();
  size_t done = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = NextUtf8(bytes.substr(at));
    if (const std::string escaped = escape(step.code_point); !escaped.empty()) {
      out->AppendSlice(text, done, at);
      out->Append(escaped, text.OriginAt(at));
      done = at + step.length;
    }
    at += step.length;
  }
  out->AppendSlice(text, done, bytes.size());
}

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_STRINGS_H_
