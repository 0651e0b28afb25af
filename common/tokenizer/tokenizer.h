// Text to token ids and back, as Hugging Face's tokenizer.json describes it: byte-level BPE (GPT-2,
// Llama-3, Qwen), BPE of characters (Llama-2, Mistral, Gemma) and Unigram (T5), with the same ids
// as Hugging Face's own library; or as tiktoken.model does (Kimi).
#ifndef COMMON_TOKENIZER_TOKENIZER_H_
#define COMMON_TOKENIZER_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/bpe/added_tokens.h"
#include "common/tokenizer/bpe/bpe.h"
#include "common/tokenizer/sidecar_files.h"
#include "common/tokenizer/tokenizer_json.h"
#include "common/tokenizer/unigram/unigram.h"
#include "common/tokenizer/words/normalizer.h"
#include "common/tokenizer/words/split_pattern.h"

namespace baton {

// Immutable once loaded: every member may be called from any thread at any time.
class Tokenizer {
 public:
  // The longest text that Encode accepts.
  static constexpr size_t kMaxTextBytes = 64 << 20;

  // Loads tokenizer.json, or tiktoken.model without it, and what stands beside it
  // (sidecar_files.h). NotFound without either; InvalidArgument for a malformed file, Unimplemented
  // for a setting that would change results and isn't supported: both name the file and the key.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& directory);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> LoadFromJson(std::string_view tokenizer_json,
                                                                 const TokenRoles& roles = {});
  // The same for tiktoken.model and the text of tokenizer_config.json, which may be empty.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> LoadFromTiktoken(std::string_view file,
                                                                     std::string_view config,
                                                                     const TokenRoles& roles = {});

  // The ids of `text`. `add_special_tokens` adds what the model expects around a text (Llama-3's
  // <|begin_of_text|>). Without `parse_special` the text of a special token is text like any other:
  // use that for whatever a user wrote. Non-special added tokens are matched either way.
  // InvalidArgument, with the byte offset, if `text` is not UTF-8 or too long; ResourceExhausted if
  // the pre-tokenizer's pattern backtracks without end on it. Work is O(n log n).
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens,
                                              bool parse_special) const;

  // The ids of a text that was put together of a template's words and of others': as Encode with
  // `parse_special` and without `add_special_tokens`, except that text of a special token with a
  // byte in `plain` is text like any other. `plain`: ranges of bytes that ascend and don't overlap.
  // Words may span the borders of ranges, so that ids are those of the whole text.
  absl::StatusOr<std::vector<int32_t>> EncodeMarked(std::string_view text,
                                                    std::span<const ByteRange> plain) const;

  // The text of `ids`; ill-formed UTF-8 becomes U+FFFD, and a space that stands for a text's
  // beginning is left out. InvalidArgument for an id without token.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids, bool skip_special) const;

  // One more than the largest id. Ids below it may be unused; the model's own vocabulary may be
  // larger (padding).
  int32_t vocab_size() const { return static_cast<int32_t>(tokens_.size()); }

  // The id of a token by its spelling in tokenizer.json: "<|im_end|>", "Ġthe".
  std::optional<int32_t> TokenId(std::string_view spelling) const;

  // The bytes that a token stands for, not always whole characters; empty if `id` has no token.
  std::string_view TokenBytes(int32_t id) const;

  bool HasToken(int32_t id) const { return InRange(id) && tokens_[id].exists; }
  bool IsSpecial(int32_t id) const { return InRange(id) && tokens_[id].special; }

  std::optional<int32_t> bos_id() const { return bos_id_; }
  // Each ends a generated text. Empty if no file names one.
  const std::vector<int32_t>& eos_ids() const { return eos_ids_; }
  // The model's chat templates by name, of which "default" is for plain
  // conversations; empty if it has none. See chat_template.h.
  const std::map<std::string, ChatTemplateSource>& chat_templates() const {
    return chat_templates_;
  }
  // The tokens that tokenizer_config.json names, by role: "bos_token" is "<s>".
  const std::map<std::string, std::string>& named_tokens() const { return named_tokens_; }

 private:
  struct Token {
    std::string bytes;
    bool exists = false;
    bool special = false;
  };

  using Model = std::variant<BpeModel, UnigramModel>;

  Tokenizer(Model model, Normalizer normalizer, const TokenizerSpec& spec);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTiktoken(const std::string& directory,
                                                                 const absl::Status& no_json);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const TokenizerSpec& spec,
                                                           const TokenRoles& roles);

  bool InRange(int32_t id) const { return id >= 0 && id < vocab_size(); }
  void AddToken(const TokenizerSpec& spec, int32_t id, const std::string& spelling, bool special);
  absl::Status AddPatterns(const TokenizerSpec& spec);
  absl::Status AddTokens(const TokenizerSpec& spec);
  absl::Status SetRoles(const TokenRoles& roles);
  absl::Status EncodeText(std::string_view text, bool parse_special,
                          std::span<const ByteRange> plain, std::vector<int32_t>* ids) const;
  absl::Status EncodeBetweenRawTokens(std::string_view text, bool at_start, bool parse_special,
                                      std::span<const ByteRange> plain, BpeScratch* scratch,
                                      std::vector<int32_t>* ids) const;
  absl::Status EncodeWords(std::string_view text, bool at_start, BpeScratch* scratch,
                           std::vector<int32_t>* ids) const;
  absl::StatusOr<std::vector<std::string_view>> SplitSpelled(
      const std::vector<std::string_view>& words, std::deque<std::string>* texts) const;
  absl::StatusOr<std::vector<std::string_view>> MarkSpaces(
      const std::vector<std::string_view>& words, bool at_start,
      std::deque<std::string>* texts) const;

  const Model model_;
  const Normalizer normalizer_;
  const DecoderRule::First first_decoded_;
  // How words are cut: TokenizerSpec says in which order.
  std::vector<SplitPattern> splits_;
  const bool add_prefix_space_;
  std::optional<SplitPattern> byte_level_split_;
  std::vector<SplitPattern> spelled_splits_;
  std::optional<MetaspaceRule> metaspace_;
  std::optional<SplitPattern> metaspace_split_;
  std::vector<int32_t> prefix_ids_;
  std::vector<int32_t> suffix_ids_;
  AddedTokenMatcher raw_added_;         // matched before normalization,
  AddedTokenMatcher normalized_added_;  // and after it
  std::vector<Token> tokens_;           // by id
  absl::flat_hash_map<std::string, int32_t> id_of_spelling_;
  std::optional<int32_t> bos_id_;
  std::vector<int32_t> eos_ids_;
  std::map<std::string, ChatTemplateSource> chat_templates_;
  std::map<std::string, std::string> named_tokens_;
};

}  // namespace baton

#endif  // COMMON_TOKENIZER_TOKENIZER_H_
