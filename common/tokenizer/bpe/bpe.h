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

// Two spellings that merge into their concatenation; lower ranks come first.
struct MergeRule {
  std::string left;
  std::string right;
  std::optional<uint32_t> rank = std::nullopt;  // Without it: the rule's place in the list.
};

struct BpeOptions {
  // A word that is a token is that token, whatever merges would make of it.
  bool ignore_merges = false;
  bool byte_level = true;  // Words are bytes, each with a token; else they are characters.
  // Characters without a token become the tokens of their bytes ("<0x0A>"), if there are such.
  bool byte_fallback = false;
  // Else they become this token; without it they are left out.
  std::optional<std::string> unk_token;
  bool fuse_unk = false;  // Several in a row become one `unk_token`.
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
  // Adds a symbol at the end. Its `next` is wrong until another one follows.
  void Add(int32_t id) {
    const auto at = static_cast<int32_t>(symbols_.size());
    symbols_.push_back({id, at - 1, at + 1});
  }
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  uint64_t steps_ = 0;
};

// Immutable; any thread.
class BpeModel {
 public:
  static absl::StatusOr<BpeModel> Create(const std::vector<VocabEntry>& vocab,
                                         const std::vector<MergeRule>& merges,
                                         const BpeOptions& options);

  // Appends the tokens of `word`, up to 2 GiB, to `ids`: any bytes with `byte_level`, else
  // well-formed UTF-8. Work is O(n log n).
  void EncodeWord(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const;

 private:
  struct Merge {
    uint32_t rank;
    int32_t merged_id;
  };

  BpeModel() = default;
  void AddEntry(const VocabEntry& entry, const BpeOptions& options);
  void AddCharacters(std::string_view word, BpeScratch* scratch) const;
  const Merge* FindMerge(int32_t left, int32_t right) const;
  void PushCandidate(int32_t left_position, BpeScratch* scratch) const;
  void MergeAll(BpeScratch* scratch) const;

  bool byte_level_ = true;
  bool fuse_unk_ = false;
  std::optional<int32_t> unk_id_;
  absl::flat_hash_map<char32_t, int32_t> character_ids_;   // Not byte_level_.
  std::array<int32_t, 256> byte_ids_{};                    // -1: none.
  absl::flat_hash_map<uint64_t, Merge> merges_;            // by left id and right id
  absl::flat_hash_map<std::string, int32_t> whole_words_;  // by bytes; only with ignore_merges
};

// The byte that "<0x0A>" stands for; none for a spelling of another shape.
std::optional<uint8_t> ByteOfFallback(std::string_view spelling);

// Byte-level BPE spells every byte as one printable character, so that tokens are text: the
// alphabet of GPT-2. Printable Latin-1 bytes stand for themselves, the other 68 for U+0100 onwards
// in the order of their values (a space is "Ġ").

// How `byte` is spelled, in UTF-8.
std::string SpellByte(uint8_t byte);

// The bytes that `spelling` stands for; none if one of its characters is outside the alphabet.
std::optional<std::string> BytesOfSpelling(std::string_view spelling);

}  // namespace baton

#endif  // COMMON_TOKENIZER_BPE_BPE_H_
