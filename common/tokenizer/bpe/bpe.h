// Byte-pair encoding of one word: the model proper, below all text handling.
#ifndef COMMON_TOKENIZER_BPE_BPE_H_
#define COMMON_TOKENIZER_BPE_BPE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

namespace baton {

// A token of the model's vocabulary as tokenizer.json spells it.
struct VocabEntry {
  std::string spelling;
  int32_t id = 0;
};

// Two spellings that merge into their concatenation; earlier merges come first.
struct MergeRule {
  std::string left;
  std::string right;
};

// Working memory of BpeModel::EncodeWord, kept between words by the caller; one per thread.
class BpeScratch {
 public:
  // Merge candidates examined so far: the measure of work.
  uint64_t steps() const { return steps_; }

 private:
  friend class BpeModel;

  struct Symbol {
    int32_t id;  // kMerged: absorbed by its left neighbour
    int32_t previous;
    int32_t next;
  };
  struct Candidate {
    uint64_t order;  // rank, then position: the candidate with the lowest is merged first
    int32_t merged_id;
  };
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  uint64_t steps_ = 0;
};

// Immutable; any thread.
class BpeModel {
 public:
  // Every single byte must have a token, so that every text can be encoded. With `ignore_merges` a
  // word that is a token is that token, whatever merges would make of it.
  static absl::StatusOr<BpeModel> Create(const std::vector<VocabEntry>& vocab,
                                         const std::vector<MergeRule>& merges, bool ignore_merges);

  // Appends the tokens of `word`, any bytes up to 2 GiB, to `ids`. Work is O(n log n).
  void EncodeWord(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const;

 private:
  struct Merge {
    uint32_t rank;
    int32_t merged_id;
  };

  BpeModel() = default;
  const Merge* FindMerge(int32_t left, int32_t right) const;
  void PushCandidate(int32_t left_position, BpeScratch* scratch) const;
  void MergeAll(BpeScratch* scratch) const;

  std::array<int32_t, 256> byte_ids_{};
  absl::flat_hash_map<uint64_t, Merge> merges_;            // by left id and right id
  absl::flat_hash_map<std::string, int32_t> whole_words_;  // by bytes; only with ignore_merges
};

// Byte-level BPE spells every byte as one printable character, so that tokens are text: the
// alphabet of GPT-2. Printable Latin-1 bytes stand for themselves, the other 68 for U+0100 onwards
// in the order of their values (a space is "Ġ").

// How `byte` is spelled, in UTF-8.
std::string SpellByte(uint8_t byte);

// The bytes that `spelling` stands for; none if one of its characters is outside the alphabet.
std::optional<std::string> BytesOfSpelling(std::string_view spelling);

}  // namespace baton

#endif  // COMMON_TOKENIZER_BPE_BPE_H_
