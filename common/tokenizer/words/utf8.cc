#include "common/tokenizer/words/utf8.h"

#include <cstdint>
#include <cstring>

namespace baton {
namespace {

// What the first byte of a sequence says about the rest (Unicode, table 3-7). The second byte's
// range is narrower than 80..BF where that rules out overlong forms, surrogates and code points
// above 10FFFF.
struct LeadByte {
  size_t length;  // 0: no character starts with this byte
  uint8_t second_low;
  uint8_t second_high;
};

LeadByte Classify(uint8_t lead) {
  if (lead < 0xC2) return {0, 0, 0};
  if (lead <= 0xDF) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead <= 0xEF) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead <= 0xF3) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// The length of the longest prefix of `text` that is ASCII, rounded down to 8 bytes.
size_t AsciiPrefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, sizeof(word));
    if ((word & 0x8080808080808080ULL) != 0) break;
  }
  return i;
}

}  // namespace

Utf8Step NextUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (byte(0) < 0x80) return {Utf8Step::Kind::kCharacter, 1, byte(0)};
  const LeadByte lead = Classify(byte(0));
  if (lead.length == 0) return {Utf8Step::Kind::kIllFormed, 1, 0};
  char32_t code_point = byte(0) & (0xFF >> (lead.length + 1));
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8Step::Kind::kTruncated, i, 0};
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {Utf8Step::Kind::kIllFormed, i, 0};
    code_point = (code_point << 6) | (byte(i) & 0x3F);
  }
  return {Utf8Step::Kind::kCharacter, lead.length, code_point};
}

size_t LastCharacter(std::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
  return start;
}

std::optional<size_t> FirstInvalidUtf8(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    if (static_cast<uint8_t>(text[offset]) < 0x80) {
      const size_t ascii = AsciiPrefix(text.substr(offset));
      offset += ascii > 0 ? ascii : 1;
      continue;
    }
    const Utf8Step step = NextUtf8(text.substr(offset));
    if (step.kind != Utf8Step::Kind::kCharacter) return offset;
    offset += step.length;
  }
  return std::nullopt;
}

size_t CountCharacters(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

size_t AppendCharacters(std::string_view bytes, std::string* text) {
  size_t offset = 0;
  while (offset < bytes.size()) {
    const Utf8Step step = NextUtf8(bytes.substr(offset));
    if (step.kind == Utf8Step::Kind::kTruncated) break;
    if (step.kind == Utf8Step::Kind::kCharacter) {
      text->append(bytes.substr(offset, step.length));
    } else {
      text->append(kReplacementCharacter);
    }
    offset += step.length;
  }
  return offset;
}

void AppendCodePoint(char32_t code_point, std::string* text) {
  const auto put = [&](char32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace baton
