#include "common/tokenizer/words/charsmap.h"

#include <unicode/brkiter.h>
#include <unicode/utext.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "common/base/strings.h"
#include "common/tokenizer/words/unicode.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {
namespace {

constexpr size_t kMaxTableBytes = 16 << 20;
constexpr size_t kLongestCluster = 5;  // Bytes; longer ones are taken character by character.

// The parts of a unit, as darts-clone packs them.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) == 1; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }

uint32_t LittleEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

absl::StatusOr<Charsmap> Charsmap::Create(std::string_view table) {
  const auto malformed = [](std::string_view what) {
    return absl::InvalidArgumentError(Concat("precompiled_charsmap: ", what));
  };
  if (table.size() > kMaxTableBytes) return malformed("is too large");
  if (table.size() < 4) return malformed("is cut off");
  const size_t trie_bytes = LittleEndian(table);
  table.remove_prefix(4);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > table.size()) {
    return malformed("its trie is cut off");
  }
  Charsmap map;
  for (size_t at = 0; at < trie_bytes; at += 4) {
    map.units_.push_back(LittleEndian(table.substr(at, 4)));
  }
  map.texts_ = table.substr(trie_bytes);
  if (FirstInvalidUtf8(map.texts_)) return malformed("its texts are not UTF-8");
  return map;
}

std::optional<std::string_view> Charsmap::Find(std::string_view text) const {
  size_t node = Offset(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || Label(units_[node]) != byte) return std::nullopt;
    const uint32_t unit = units_[node];
    node ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    const size_t at = node < units_.size() ? Value(units_[node]) : texts_.size();
    if (at >= texts_.size()) return std::nullopt;
    const std::string_view found = std::string_view(texts_).substr(at);
    return found.substr(0, std::min(found.find('\0'), found.size()));
  }
  return std::nullopt;
}

absl::StatusOr<std::string> Charsmap::Apply(std::string_view text) const {
  UErrorCode error = U_ZERO_ERROR;
  const std::unique_ptr<icu::BreakIterator> clusters(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), error));
  UText* const source =
      utext_openUTF8(nullptr, text.data(), static_cast<int64_t>(text.size()), &error);
  if (U_SUCCESS(error)) clusters->setText(source, error);
  if (U_FAILURE(error)) {
    utext_close(source);
    return absl::InternalError(Concat("cutting into characters failed: ", u_errorName(error)));
  }
  std::string out;
  size_t begin = 0;
  for (int32_t end = clusters->next(); end != icu::BreakIterator::DONE; end = clusters->next()) {
    std::string_view cluster = text.substr(begin, static_cast<size_t>(end) - begin);
    begin = static_cast<size_t>(end);
    if (cluster.size() <= kLongestCluster) {
      if (const auto found = Find(cluster)) {
        out += *found;
        continue;
      }
    }
    while (!cluster.empty()) {
      const std::string_view character = cluster.substr(0, NextUtf8(cluster).length);
      out += Find(character).value_or(character);
      cluster.remove_prefix(character.size());
    }
  }
  utext_close(source);
  return out;
}

}  // namespace baton
