// Reads Hugging Face's tokenizer.json into plain data. Strict: a key that would change results and
// isn't supported is an error, and so is a key that isn't known. "truncation" and "padding" say
// how texts of a batch are brought to one length, which serving never does: they are ignored, as
// transformers and vLLM do.
#ifndef COMMON_TOKENIZER_TOKENIZER_JSON_H_
#define COMMON_TOKENIZER_TOKENIZER_JSON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/bpe/added_tokens.h"
#include "common/tokenizer/bpe/bpe.h"
#include "common/tokenizer/words/normalizer.h"
#include "common/tokenizer/words/split_pattern.h"

namespace baton {

// Ids are below this, so that tables indexed by id stay small. The largest vocabularies in use
// have 262,144 tokens.
inline constexpr int32_t kMaxVocabSize = 1 << 20;

// Spaces become `replacement`. `prepend` says where it is put before a text too; with `split` words
// begin with it.
struct MetaspaceRule {
  enum class Prepend { kNever, kFirst, kAlways };  // kFirst: at the whole text's beginning alone.
  std::string replacement;
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

// How the spellings of tokens become text, where they are not those of bytes.
struct DecoderRule {
  // kWithoutSpace: the text loses a space at its beginning; kWithoutSpaces: its first token loses
  // every space.
  enum class First { kAsIs, kWithoutSpace, kWithoutSpaces };
  std::vector<std::pair<std::string, std::string>> replacements;  // In order.
  bool byte_fallback = false;                                     // "<0x0A>" is a byte.
  First first = First::kAsIs;
};

struct TokenizerSpec {
  std::vector<NormalizerStep> normalizer;  // in order
  // How words are cut: by `splits` in order, then a space is put before each piece that doesn't
  // begin with one if `add_prefix_space`, then by `byte_level_split`, then, spelled in the byte
  // alphabet, by `spelled_splits` (Falcon).
  std::vector<SplitRule> splits;
  bool add_prefix_space = false;
  std::optional<SplitRule> byte_level_split;
  std::vector<SplitRule> spelled_splits;
  std::optional<MetaspaceRule> metaspace;  // Behind `splits`.
  std::vector<VocabEntry> vocab;           // ids are unique and in [0, kMaxVocabSize)
  std::vector<MergeRule> merges;
  BpeOptions bpe;                        // is_unigram: `byte_fallback` alone.
  bool is_unigram = false;               // Then `vocab` is in the order of ids.
  std::vector<double> scores;            // is_unigram: one for each of `vocab`.
  int32_t unk_id = 0;                    // is_unigram.
  std::vector<AddedToken> added_tokens;  // ids agree with `vocab` where both have the content
  std::vector<int32_t> prefix_ids;       // what add_special_tokens puts before the text,
  std::vector<int32_t> suffix_ids;       // and after it
  DecoderRule decoder;
};

// InvalidArgument for what is malformed or inconsistent, Unimplemented for what is valid and not
// supported; the message names the key.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view json_text);

}  // namespace baton

#endif  // COMMON_TOKENIZER_TOKENIZER_JSON_H_
