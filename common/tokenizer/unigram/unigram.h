// SentencePiece's Unigram model: of all ways to cut a word into pieces the one whose scores sum to
// the most.
#ifndef COMMON_TOKENIZER_UNIGRAM_UNIGRAM_H_
#define COMMON_TOKENIZER_UNIGRAM_UNIGRAM_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/bpe/bpe.h"

namespace baton {

// Immutable; any thread.
class UnigramModel {
 public:
  // `scores`: logarithms of probabilities, one for each entry; the ids are 0, 1, ... The token
  // `unk_id` stands for text that no piece covers. InvalidArgument if no entry has that id.
  static absl::StatusOr<UnigramModel> Create(const std::vector<VocabEntry>& vocab,
                                             const std::vector<double>& scores, int32_t unk_id,
                                             bool byte_fallback);

  // Appends the tokens of `word`, well-formed UTF-8. Work is linear in it, times the length of the
  // longest piece.
  void EncodeWord(std::string_view word, std::vector<int32_t>* ids) const;

 private:
  struct Piece {
    std::string text;
    int32_t id = 0;
    double score = 0;
  };
  // The best way to cut the word's bytes up to here.
  struct Place {
    int32_t from = -1;  // Where its last piece begins; -1: there is no way yet.
    int32_t id = 0;
    double score = 0;
  };

  UnigramModel() = default;
  std::optional<int32_t> IdOf(std::string_view text) const;
  void AddPieces(std::string_view word, size_t from, std::vector<Place>& places) const;
  void AppendUnknown(std::string_view text, std::vector<int32_t>* ids) const;

  std::vector<Piece> pieces_;            // By their texts, each once.
  std::array<uint32_t, 257> by_byte_{};  // [b]: the first that begins with byte b or a higher one.
  std::array<int32_t, 256> byte_ids_{};  // -1: none.
  int32_t unk_id_ = 0;
  double unk_score_ = 0;
};

}  // namespace baton

#endif  // COMMON_TOKENIZER_UNIGRAM_UNIGRAM_H_
