#include "common/grammar/utf8_ranges.h"

#include <algorithm>
#include <array>

namespace baton::grammar {
namespace {

constexpr std::array<uint32_t, 4> kLastOfLength = {0x7F, 0x7FF, 0xFFFF, kLastCodePoint};

std::string Utf8Of(uint32_t code_point) {
  std::string bytes;
  AppendUtf8(code_point, bytes);
  return bytes;
}

// Splits [low, high], whose characters have the same number of bytes, where bytes but the last few
// differ, so that the rest is a product of ranges.
void Split(uint32_t low, uint32_t high, std::vector<ByteRangeSequence>& out) {
  const std::string first = Utf8Of(low);
  const std::string last = Utf8Of(high);
  const size_t length = first.size();
  for (size_t i = 1; i < length; ++i) {
    // The bits below the first `length - i` bytes.
    const uint32_t mask = (uint32_t{1} << (6 * i)) - 1;
    if ((low & ~mask) == (high & ~mask)) break;
    if ((low & mask) != 0) {
      Split(low, low | mask, out);
      return Split((low | mask) + 1, high, out);
    }
    if ((high & mask) != mask) {
      Split(low, (high & ~mask) - 1, out);
      return Split(high & ~mask, high, out);
    }
  }
  ByteRangeSequence sequence;
  for (size_t i = 0; i < length; ++i) {
    sequence.push_back({static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i])});
  }
  out.push_back(std::move(sequence));
}

}  // namespace

std::vector<ByteRangeSequence> ToByteRanges(const CodeRanges& ranges) {
  std::vector<ByteRangeSequence> out;
  for (const CodeRange& range : ranges) {
    uint32_t low = range.low;
    for (const uint32_t last : kLastOfLength) {
      if (low > last || low > range.high) continue;
      const uint32_t high = std::min(range.high, last);
      Split(low, high, out);
      low = high + 1;
    }
  }
  return out;
}

void AppendUtf8(uint32_t code_point, std::string& out) {
  const auto byte = [&out](uint32_t value) { out.push_back(static_cast<char>(value)); };
  if (code_point < 0x80) return byte(code_point);
  if (code_point < 0x800) {
    byte(0xC0 | code_point >> 6);
  } else if (code_point < 0x10000) {
    byte(0xE0 | code_point >> 12);
    byte(0x80 | (code_point >> 6 & 0x3F));
  } else {
    byte(0xF0 | code_point >> 18);
    byte(0x80 | (code_point >> 12 & 0x3F));
    byte(0x80 | (code_point >> 6 & 0x3F));
  }
  byte(0x80 | (code_point & 0x3F));
}

std::optional<uint32_t> NextCodePoint(std::string_view text, size_t& at) {
  const auto first = static_cast<uint8_t>(text[at]);
  if (first < 0x80) {
    ++at;
    return first;
  }
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() - at < length) return std::nullopt;
  uint32_t code_point = first & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<uint8_t>(text[at + i]);
    if ((next & 0xC0) != 0x80) return std::nullopt;
    code_point = code_point << 6 | (next & 0x3FU);
  }
  const bool overlong = code_point <= kLastOfLength[length - 2];
  if (overlong || code_point > kLastCodePoint || (code_point >= 0xD800 && code_point <= 0xDFFF)) {
    return std::nullopt;
  }
  at += length;
  return code_point;
}

std::u32string ToCodePoints(std::string_view text) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    const auto code_point = NextCodePoint(text, at);
    out.push_back(code_point ? *code_point : static_cast<uint8_t>(text[at++]));
  }
  return out;
}

}  // namespace baton::grammar
