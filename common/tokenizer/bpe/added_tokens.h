// Added tokens: pieces of text that are one token wherever they occur, found before the text is
// cut into words. Special ones (<|im_end|>) carry control and are matched only where asked for.
#ifndef COMMON_TOKENIZER_BPE_ADDED_TOKENS_H_
#define COMMON_TOKENIZER_BPE_ADDED_TOKENS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace baton {

// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
};

// Those of the ranges, which ascend, that end after `offset`.
inline std::span<const ByteRange> RangesAfter(std::span<const ByteRange> ranges, size_t offset) {
  const auto first = std::ranges::upper_bound(ranges, offset, {}, &ByteRange::end);
  return ranges.subspan(static_cast<size_t>(first - ranges.begin()));
}

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;   // matched in normalized text rather than in the text as given
  bool strip_left = false;   // takes white space before it along
  bool strip_right = false;  // takes white space after it along
  bool single_word = false;  // not matched next to a word character
};

// Finds a set of added tokens. Immutable once filled; any thread.
class AddedTokenMatcher {
 public:
  struct Piece {
    std::string_view text;
    std::optional<int32_t> token;  // none: text between tokens
  };

  // `token.content` must not be empty. Of two tokens with the same content the first counts.
  void Add(const AddedToken& token);

  // Cuts `text` (well-formed UTF-8) into tokens and what is between them: the leftmost token, the
  // longest if several start there. Text of special tokens stays text unless `parse_special`, and
  // always where it has a byte in `plain`, whose ranges ascend and don't overlap.
  std::vector<Piece> Find(std::string_view text, bool parse_special,
                          std::span<const ByteRange> plain = {}) const;

 private:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    const AddedToken* token = nullptr;  // Null: what matched may not count.
  };

  std::optional<Match> NextMatch(std::string_view text, size_t from, bool parse_special,
                                 std::span<const ByteRange> plain) const;
  // The longest of the tokens that start at `begin`.
  std::optional<Match> MatchAt(std::string_view text, size_t begin, bool parse_special,
                               std::span<const ByteRange> plain) const;

  std::vector<AddedToken> tokens_;
  // A trie. Edges are keyed by node and byte; node 0 is the root.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> token_of_node_ = {-1};  // index into tokens_, or -1
  std::array<bool, 256> starts_token_{};
};

}  // namespace baton

#endif  // COMMON_TOKENIZER_BPE_ADDED_TOKENS_H_
