#include "common/tokenizer/chat/jinja/strings.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <array>

#include "common/base/strings.h"
#include "common/tokenizer/words/unicode.h"
#include "common/tokenizer/words/utf8.h"

namespace baton::jinja {
namespace {

// Unicode's full case mapping, in which one character may become several.
std::string Mapped(std::string_view text, Case form) {
  icu::UnicodeString wide = icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
  if (form == Case::kUpper) {
    wide.toUpper(icu::Locale::getRoot());
  } else if (form == Case::kLower) {
    wide.toLower(icu::Locale::getRoot());
  } else {
    wide.toTitle(nullptr, icu::Locale::getRoot(), U_TITLECASE_NO_LOWERCASE);
  }
  std::string mapped;
  wide.toUTF8String(mapped);
  return mapped;
}

// The first character in `form`, the rest in lower case.
std::string HeadAndLower(std::string_view text, Case form) {
  if (text.empty()) return "";
  const size_t head = NextUtf8(text).length;
  return Concat(Mapped(text.substr(0, head), form), Mapped(text.substr(head), Case::kLower));
}

bool IsCased(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED); }

// str.title(): a word is a run of letters that have case.
std::string PythonTitle(std::string_view text) {
  std::string titled;
  bool in_word = false;
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    titled += Mapped(text.substr(0, step.length), in_word ? Case::kLower : Case::kTitle);
    in_word = IsCased(step.code_point);
    text.remove_prefix(step.length);
  }
  return titled;
}

// The filter `title`: a word ends at white space, a hyphen or an opening bracket.
std::string JinjaTitle(std::string_view text) {
  std::string titled;
  size_t begin = 0;
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = NextUtf8(text.substr(at));
    const bool separates = IsPythonSpace(step.code_point) ||
                           std::string_view("-({[<").find(text[at]) != std::string_view::npos;
    if (separates) {
      titled += HeadAndLower(text.substr(begin, at - begin), Case::kUpper);
      titled += text.substr(at, step.length);
      begin = at + step.length;
    }
    at += step.length;
  }
  return titled + HeadAndLower(text.substr(begin), Case::kUpper);
}

std::string Swapped(std::string_view text) {
  std::string swapped;
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    const bool upper = u_isUUppercase(static_cast<UChar32>(step.code_point));
    swapped += Mapped(text.substr(0, step.length), upper ? Case::kLower : Case::kUpper);
    text.remove_prefix(step.length);
  }
  return swapped;
}

bool StripsAt(char32_t c, const std::string* characters) {
  if (characters == nullptr) return IsPythonSpace(c);
  std::string one;
  AppendCodePoint(c, &one);
  return characters->find(one) != std::string::npos;
}

bool IsNumericType(UChar32 c, std::initializer_list<int> types) {
  const int type = u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE);
  for (const int wanted : types) {
    if (type == wanted) return true;
  }
  return false;
}

bool IsDecimal(UChar32 c) { return IsNumericType(c, {U_NT_DECIMAL}); }
bool IsDigitCharacter(UChar32 c) { return IsNumericType(c, {U_NT_DECIMAL, U_NT_DIGIT}); }
bool IsNumeric(UChar32 c) { return IsNumericType(c, {U_NT_DECIMAL, U_NT_DIGIT, U_NT_NUMERIC}); }
bool IsAlpha(UChar32 c) { return (U_GET_GC_MASK(c) & U_GC_L_MASK) != 0; }
bool IsAlnum(UChar32 c) { return IsAlpha(c) || IsNumeric(c); }
bool IsAscii(UChar32 c) { return c < 0x80; }
bool IsSpace(UChar32 c) { return IsPythonSpace(static_cast<char32_t>(c)); }

struct CharacterClass {
  std::string_view name;
  bool (*contains)(UChar32);
  bool empty;  // What an empty string is.
};

constexpr std::array<CharacterClass, 7> kClasses = {{{"isdecimal", IsDecimal, false},
                                                     {"isdigit", IsDigitCharacter, false},
                                                     {"isnumeric", IsNumeric, false},
                                                     {"isalpha", IsAlpha, false},
                                                     {"isalnum", IsAlnum, false},
                                                     {"isascii", IsAscii, true},
                                                     {"isspace", IsSpace, false}}};

// isupper and islower: some letter has case, and none has the other one.
bool IsAllIn(std::string_view text, bool upper) {
  bool some = false;
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    const auto c = static_cast<UChar32>(step.code_point);
    const bool is_upper = u_isUUppercase(c);
    const bool is_lower = u_isULowercase(c);
    if (u_istitle(c) || (upper ? is_lower : is_upper)) return false;
    some = some || (upper ? is_upper : is_lower);
    text.remove_prefix(step.length);
  }
  return some;
}

bool IsTitle(std::string_view text) {
  bool some = false;
  bool in_word = false;
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    const auto c = static_cast<UChar32>(step.code_point);
    const bool head = u_isUUppercase(c) || u_istitle(c);
    const bool tail = u_isULowercase(c);
    if ((head && in_word) || (tail && !in_word)) return false;
    some = some || head || tail;
    in_word = head || tail;
    text.remove_prefix(step.length);
  }
  return some;
}

}  // namespace

bool IsPythonSpace(char32_t code_point) {
  return IsWhiteSpace(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

size_t StripBegin(std::string_view text, const std::string* characters) {
  return LeadingBytes(text, [&](char32_t c) { return StripsAt(c, characters); });
}

size_t StripEnd(std::string_view text, const std::string* characters) {
  return TrailingBegin(text, [&](char32_t c) { return StripsAt(c, characters); });
}

Text Strip(const Text& text, bool left, bool right, const std::string* characters) {
  const size_t begin = left ? StripBegin(text.bytes(), characters) : 0;
  if (!right) return text.Slice(begin, text.size());
  const std::string_view rest = std::string_view(text.bytes()).substr(begin);
  return text.Slice(begin, begin + StripEnd(rest, characters));
}

int64_t LengthInCharacters(std::string_view text) {
  return static_cast<int64_t>(CountCharacters(text));
}

size_t ByteOffset(std::string_view text, int64_t characters) {
  size_t at = 0;
  for (; characters > 0 && at < text.size(); --characters) at += NextUtf8(text.substr(at)).length;
  return at;
}

std::vector<size_t> CharacterOffsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t at = 0; at < text.size(); at += NextUtf8(text.substr(at)).length) {
    offsets.push_back(at);
  }
  offsets.push_back(text.size());
  return offsets;
}

Text ChangeCase(const Text& text, Case form) {
  const auto whole = [&](std::string changed) { return Text(std::move(changed), text.origin()); };
  switch (form) {
    case Case::kUpper:
    case Case::kLower: {
      const std::string_view bytes = text.bytes();
      Text mapped;
      size_t begin = 0;
      for (const ByteRange& range : text.client_ranges()) {
        mapped.Append(Mapped(bytes.substr(begin, range.begin - begin), form));
        mapped.Append(Mapped(bytes.substr(range.begin, range.end - range.begin), form),
                      Origin::kClient);
        begin = range.end;
      }
      mapped.Append(Mapped(bytes.substr(begin), form));
      return mapped;
    }
    case Case::kCapitalize:
      return whole(HeadAndLower(text.bytes(), Case::kTitle));
    case Case::kTitle:
      return whole(PythonTitle(text.bytes()));
    case Case::kJinjaTitle:
      return whole(JinjaTitle(text.bytes()));
    case Case::kSwap:
      return whole(Swapped(text.bytes()));
  }
  return text;
}

std::string Lower(std::string_view text) { return Mapped(text, Case::kLower); }

bool IsClassMethod(std::string_view name) {
  for (const CharacterClass& known : kClasses) {
    if (known.name == name) return true;
  }
  return name == "isupper" || name == "islower" || name == "istitle";
}

bool HasClass(std::string_view name, std::string_view text) {
  if (name == "isupper" || name == "islower") return IsAllIn(text, name == "isupper");
  if (name == "istitle") return IsTitle(text);
  for (const CharacterClass& known : kClasses) {
    if (known.name != name) continue;
    if (text.empty()) return known.empty;
    while (!text.empty()) {
      const Utf8Step step = NextUtf8(text);
      if (!known.contains(static_cast<UChar32>(step.code_point))) return false;
      text.remove_prefix(step.length);
    }
    return true;
  }
  return false;
}

}  // namespace baton::jinja
