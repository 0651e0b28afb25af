#include "common/tokenizer/bpe/byte_alphabet.h"

#include <array>

#include "common/tokenizer/words/utf8.h"

namespace baton {
namespace {

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr char32_t kFirstSubstitute = 0x100;
constexpr int kSubstitutes = 68;

struct Alphabet {
  std::array<char32_t, 256> character_of_byte{};
  std::array<int, kFirstSubstitute + kSubstitutes> byte_of_character{};  // -1: none
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int& byte : alphabet.byte_of_character) byte = -1;
  char32_t next = kFirstSubstitute;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t character = StandsForItself(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.character_of_byte[byte] = character;
    alphabet.byte_of_character[character] = byte;
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::string SpellByte(uint8_t byte) {
  std::string spelling;
  AppendCodePoint(kAlphabet.character_of_byte[byte], &spelling);
  return spelling;
}

std::optional<std::string> BytesOfSpelling(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const Utf8Step step = NextUtf8(spelling);
    if (step.kind != Utf8Step::Kind::kCharacter) return std::nullopt;
    if (step.code_point >= kAlphabet.byte_of_character.size()) return std::nullopt;
    const int byte = kAlphabet.byte_of_character[step.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    spelling.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace baton
