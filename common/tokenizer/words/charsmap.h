// SentencePiece's table of what a text's characters become ("precompiled_charsmap"): a trie of
// bytes in an array, and the texts that its leaves name.
#ifndef COMMON_TOKENIZER_WORDS_CHARSMAP_H_
#define COMMON_TOKENIZER_WORDS_CHARSMAP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// Immutable; any thread.
class Charsmap {
 public:
  // `table`: as in the file, after base64. INVALID_ARGUMENT for one that is cut off. What it says
  // of places outside itself is nothing.
  static absl::StatusOr<Charsmap> Create(std::string_view table);

  // `text`, well-formed, with what the table has of its characters, and of those that are put
  // together of several.
  absl::StatusOr<std::string> Apply(std::string_view text) const;

 private:
  Charsmap() = default;
  // What the shortest beginning of `text` becomes that the table has.
  std::optional<std::string_view> Find(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string texts_;  // Each ends with a zero byte.
};

}  // namespace baton

#endif  // COMMON_TOKENIZER_WORDS_CHARSMAP_H_
