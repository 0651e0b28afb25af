// Code points and the bytes of UTF-8.
#ifndef COMMON_GRAMMAR_UTF8_RANGES_H_
#define COMMON_GRAMMAR_UTF8_RANGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/grammar/grammar.h"

namespace baton::grammar {

struct ByteRange {
  uint8_t low = 0;
  uint8_t high = 0;
  auto operator<=>(const ByteRange&) const = default;
};

// One after the other, 1 to 4 of them.
using ByteRangeSequence = std::vector<ByteRange>;

// The characters of `ranges`, which are Normalized, as sequences of bytes. No sequence is the
// beginning of another.
std::vector<ByteRangeSequence> ToByteRanges(const CodeRanges& ranges);

void AppendUtf8(uint32_t code_point, std::string& out);

// The code point at `at`, which moves behind it; nullopt where `text` is not UTF-8.
std::optional<uint32_t> NextCodePoint(std::string_view text, size_t& at);

// `text` is UTF-8; a byte that is not part of a character is its own code point.
std::u32string ToCodePoints(std::string_view text);

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_UTF8_RANGES_H_
