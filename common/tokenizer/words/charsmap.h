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
  // `table`: as in the file, after base64. INVALID_ARGUMENT for one that is cut off. An entry that
  // points outside the table counts as none.
  static absl::StatusOr<Charsmap> Create(std::string_view table);

  // Replaces what the table has an entry for: characters of `text`, which must be well-formed, and
  // short clusters of them that people see as one.
  absl::StatusOr<std::string> Apply(std::string_view text) const;

 private:
  Charsmap() = default;
  // What the table puts for the shortest beginning of `text` that has an entry.
  std::optional<std::string_view> Find(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string texts_;  // Each ends with a zero byte.
};

}  // namespace baton

#endif  // COMMON_TOKENIZER_WORDS_CHARSMAP_H_
