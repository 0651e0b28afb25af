// Byte-level BPE spells every byte as one printable character, so that tokens are text: the
// alphabet of GPT-2. Printable Latin-1 bytes stand for themselves, the other 68 for U+0100 onwards
// in the order of their values (a space is "Ġ").
#ifndef COMMON_TOKENIZER_BPE_BYTE_ALPHABET_H_
#define COMMON_TOKENIZER_BPE_BYTE_ALPHABET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

// How `byte` is spelled, in UTF-8.
std::string SpellByte(uint8_t byte);

// The bytes that `spelling` stands for; none if one of its characters is outside the alphabet.
std::optional<std::string> BytesOfSpelling(std::string_view spelling);

}  // namespace baton

#endif  // COMMON_TOKENIZER_BPE_BYTE_ALPHABET_H_
