#include "common/tokenizer/tokenizer.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/bpe/bpe.h"
#include "common/tokenizer/tiktoken_file.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {
namespace {

constexpr size_t kMaxTokenizerJsonBytes = 128 << 20;

// What bytes [begin, end) have of `ranges`, counted from `begin`.
std::vector<ByteRange> RangesWithin(std::span<const ByteRange> ranges, size_t begin, size_t end) {
  std::vector<ByteRange> within;
  for (const ByteRange& range : RangesAfter(ranges, begin)) {
    if (range.begin >= end) break;
    within.push_back({std::max(range.begin, begin) - begin, std::min(range.end, end) - begin});
  }
  return within;
}

// What the token adds to a text.
std::string BytesOf(const std::string& spelling, const TokenizerSpec& spec) {
  // An added token with characters outside the byte alphabet ("<｜User｜>") is its own text.
  if (spec.bpe.byte_level) return BytesOfSpelling(spelling).value_or(spelling);
  if (spec.decoder.byte_fallback) {
    if (const auto byte = ByteOfFallback(spelling)) return {static_cast<char>(*byte)};
  }
  std::string bytes = spelling;
  for (const auto& [from, to] : spec.decoder.replacements) {
    bytes = absl::StrReplaceAll(bytes, {{from, to}});
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& directory) {
  const std::string path = Concat(directory, "/tokenizer.json");
  const absl::StatusOr<std::string> json = ReadBoundedFile(path, kMaxTokenizerJsonBytes);
  if (absl::IsNotFound(json.status())) return LoadTiktoken(directory, json.status());
  BATON_RETURN_IF_ERROR(json.status());
  BATON_ASSIGN_OR_RETURN(const TokenRoles roles, LoadTokenRoles(directory));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadFromJson(*json, roles);
  BATON_RETURN_IF_ERROR(Annotate(tokenizer.status(), path));
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::LoadTiktoken(const std::string& directory,
                                                                   const absl::Status& no_json) {
  const std::string path = Concat(directory, "/tiktoken.model");
  const absl::StatusOr<std::string> file = ReadBoundedFile(path, kMaxTokenizerJsonBytes);
  if (absl::IsNotFound(file.status())) return no_json;
  BATON_RETURN_IF_ERROR(file.status());
  const absl::StatusOr<std::string> config =
      ReadBoundedFile(Concat(directory, "/tokenizer_config.json"), kMaxTokenizerJsonBytes);
  if (!absl::IsNotFound(config.status())) BATON_RETURN_IF_ERROR(config.status());
  BATON_ASSIGN_OR_RETURN(const TokenRoles roles, LoadTokenRoles(directory));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      LoadFromTiktoken(*file, config.value_or(""), roles);
  BATON_RETURN_IF_ERROR(Annotate(tokenizer.status(), path));
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::LoadFromTiktoken(std::string_view file,
                                                                       std::string_view config,
                                                                       const TokenRoles& roles) {
  BATON_ASSIGN_OR_RETURN(const TokenizerSpec spec, ParseTiktoken(file, config));
  return Create(spec, roles);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::LoadFromJson(std::string_view tokenizer_json,
                                                                   const TokenRoles& roles) {
  BATON_ASSIGN_OR_RETURN(const TokenizerSpec spec, ParseTokenizerJson(tokenizer_json));
  return Create(spec, roles);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const TokenizerSpec& spec,
                                                             const TokenRoles& roles) {
  std::optional<Model> model;
  if (spec.is_unigram) {
    BATON_ASSIGN_OR_RETURN(
        model, UnigramModel::Create(spec.vocab, spec.scores, spec.unk_id, spec.bpe.byte_fallback));
  } else {
    BATON_ASSIGN_OR_RETURN(model, BpeModel::Create(spec.vocab, spec.merges, spec.bpe));
  }
  absl::StatusOr<Normalizer> normalizer = Normalizer::Create(spec.normalizer);
  BATON_RETURN_IF_ERROR(Annotate(normalizer.status(), "normalizer"));
  std::unique_ptr<Tokenizer> tokenizer(
      new Tokenizer(*std::move(model), *std::move(normalizer), spec));
  BATON_RETURN_IF_ERROR(Annotate(tokenizer->AddPatterns(spec), "pre_tokenizer"));
  BATON_RETURN_IF_ERROR(tokenizer->AddTokens(spec));
  BATON_RETURN_IF_ERROR(tokenizer->SetRoles(roles));
  return tokenizer;
}

Tokenizer::Tokenizer(Model model, Normalizer normalizer, const TokenizerSpec& spec)
    : model_(std::move(model)),
      normalizer_(std::move(normalizer)),
      first_decoded_(spec.decoder.first),
      add_prefix_space_(spec.add_prefix_space),
      metaspace_(spec.metaspace),
      prefix_ids_(spec.prefix_ids),
      suffix_ids_(spec.suffix_ids) {}

absl::Status Tokenizer::AddPatterns(const TokenizerSpec& spec) {
  for (const SplitRule& rule : spec.splits) {
    BATON_ASSIGN_OR_RETURN(SplitPattern compiled, SplitPattern::Compile(rule));
    splits_.push_back(std::move(compiled));
  }
  if (spec.byte_level_split.has_value()) {
    BATON_ASSIGN_OR_RETURN(byte_level_split_, SplitPattern::Compile(*spec.byte_level_split));
  }
  for (const SplitRule& rule : spec.spelled_splits) {
    BATON_ASSIGN_OR_RETURN(SplitPattern compiled, SplitPattern::Compile(rule));
    spelled_splits_.push_back(std::move(compiled));
  }
  if (spec.metaspace.has_value() && spec.metaspace->split) {
    BATON_ASSIGN_OR_RETURN(
        metaspace_split_,
        SplitPattern::Compile({spec.metaspace->replacement, SplitRule::Syntax::kLiteral,
                               SplitBehavior::kMergedWithNext, false}));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::AddTokens(const TokenizerSpec& spec) {
  for (const VocabEntry& entry : spec.vocab) AddToken(spec, entry.id, entry.spelling, false);
  for (AddedToken token : spec.added_tokens) {
    AddToken(spec, token.id, token.content, token.special);
    if (!token.normalized) {
      raw_added_.Add(token);
      continue;
    }
    // It is looked for in normalized text, as what the normalizer makes of it.
    BATON_ASSIGN_OR_RETURN(token.content, normalizer_.Apply(token.content, kMaxTextBytes));
    if (!token.content.empty()) normalized_added_.Add(token);
  }
  return absl::OkStatus();
}

void Tokenizer::AddToken(const TokenizerSpec& spec, int32_t id, const std::string& spelling,
                         bool special) {
  if (id >= vocab_size()) tokens_.resize(static_cast<size_t>(id) + 1);
  Token& token = tokens_[id];
  token.exists = true;
  token.special = token.special || special;
  token.bytes = BytesOf(spelling, spec);
  id_of_spelling_.emplace(spelling, id);
}

absl::Status Tokenizer::SetRoles(const TokenRoles& roles) {
  const auto id_of = [&](const std::string& token,
                         std::string_view role) -> absl::StatusOr<int32_t> {
    if (const std::optional<int32_t> id = TokenId(token)) return *id;
    return absl::InvalidArgumentError(
        Concat("tokenizer_config.json: ", role, " \"", token, "\" is not a token"));
  };
  bos_id_ = roles.bos_id;
  if (roles.bos_token.has_value()) {
    BATON_ASSIGN_OR_RETURN(bos_id_, id_of(*roles.bos_token, "bos_token"));
  }
  eos_ids_ = roles.eos_ids;
  if (roles.eos_token.has_value()) {
    BATON_ASSIGN_OR_RETURN(const int32_t id, id_of(*roles.eos_token, "eos_token"));
    if (std::find(eos_ids_.begin(), eos_ids_.end(), id) == eos_ids_.end()) eos_ids_.push_back(id);
  }
  // What goes around a text is tokenizer.json's to say; where it says nothing, these do.
  if (roles.add_bos_token && prefix_ids_.empty() && bos_id_.has_value()) prefix_ids_ = {*bos_id_};
  if (roles.add_eos_token && suffix_ids_.empty() && roles.eos_token.has_value()) {
    suffix_ids_ = {*TokenId(*roles.eos_token)};
  }
  chat_templates_ = roles.chat_templates;
  named_tokens_ = roles.named_tokens;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       bool add_special_tokens,
                                                       bool parse_special) const {
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = prefix_ids_;
  BATON_RETURN_IF_ERROR(EncodeText(text, parse_special, {}, &ids));
  if (add_special_tokens) ids.insert(ids.end(), suffix_ids_.begin(), suffix_ids_.end());
  return ids;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeMarked(
    std::string_view text, std::span<const ByteRange> plain) const {
  std::vector<int32_t> ids;
  BATON_RETURN_IF_ERROR(EncodeText(text, /*parse_special=*/true, plain, &ids));
  return ids;
}

absl::Status Tokenizer::EncodeText(std::string_view text, bool parse_special,
                                   std::span<const ByteRange> plain,
                                   std::vector<int32_t>* ids) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        Concat("text of ", text.size(), " bytes; at most ", kMaxTextBytes, " are allowed"));
  }
  if (const std::optional<size_t> offset = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(Concat("text is not UTF-8 at byte ", *offset));
  }
  BpeScratch scratch;
  for (const AddedTokenMatcher::Piece& piece : raw_added_.Find(text, parse_special, plain)) {
    if (piece.token.has_value()) {
      ids->push_back(*piece.token);
      continue;
    }
    const auto begin = static_cast<size_t>(piece.text.data() - text.data());
    const std::vector<ByteRange> within = RangesWithin(plain, begin, begin + piece.text.size());
    BATON_RETURN_IF_ERROR(
        EncodeBetweenRawTokens(piece.text, begin == 0, parse_special, within, &scratch, ids));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::EncodeBetweenRawTokens(std::string_view text, bool at_start,
                                               bool parse_special, std::span<const ByteRange> plain,
                                               BpeScratch* scratch,
                                               std::vector<int32_t>* ids) const {
  std::string normalized;
  if (!normalizer_.empty()) {
    BATON_ASSIGN_OR_RETURN(normalized, normalizer_.Apply(text, kMaxTextBytes));
    // Where the bytes moved, ranges no longer say which are plain: all of them may be.
    if (normalized != text && !plain.empty()) parse_special = false;
    text = normalized;
  }
  for (const AddedTokenMatcher::Piece& piece : normalized_added_.Find(text, parse_special, plain)) {
    if (piece.token.has_value()) {
      ids->push_back(*piece.token);
    } else {
      const bool first = at_start && piece.text.data() == text.data();
      BATON_RETURN_IF_ERROR(EncodeWords(piece.text, first, scratch, ids));
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::EncodeWords(std::string_view text, bool at_start, BpeScratch* scratch,
                                    std::vector<int32_t>* ids) const {
  std::vector<std::string_view> words = {text};
  for (const SplitPattern& split : splits_) {
    BATON_ASSIGN_OR_RETURN(words, split.Split(words));
  }
  std::deque<std::string> changed;  // Keeps what its views point to in place.
  for (std::string_view& word : words) {
    if (!add_prefix_space_ || word.empty() || word.front() == ' ') continue;
    word = changed.emplace_back(Concat(" ", word));
  }
  if (byte_level_split_.has_value()) {
    BATON_ASSIGN_OR_RETURN(words, byte_level_split_->Split(words));
  }
  if (!spelled_splits_.empty()) {
    BATON_ASSIGN_OR_RETURN(words, SplitSpelled(words, &changed));
  }
  if (metaspace_.has_value()) {
    const bool first = at_start && !words.empty() && words.front().data() == text.data();
    BATON_ASSIGN_OR_RETURN(words, MarkSpaces(words, first, &changed));
  }
  if (const auto* bpe = std::get_if<BpeModel>(&model_)) {
    for (const std::string_view word : words) bpe->EncodeWord(word, scratch, ids);
  } else {
    for (const std::string_view word : words) std::get<UnigramModel>(model_).EncodeWord(word, ids);
  }
  return absl::OkStatus();
}

// What is returned points into `texts`.
absl::StatusOr<std::vector<std::string_view>> Tokenizer::SplitSpelled(
    const std::vector<std::string_view>& words, std::deque<std::string>* texts) const {
  std::vector<std::string_view> pieces;
  pieces.reserve(words.size());
  for (const std::string_view word : words) {
    std::string& spelled = texts->emplace_back();
    for (const char byte : word) spelled += SpellByte(static_cast<uint8_t>(byte));
    pieces.push_back(spelled);
  }
  for (const SplitPattern& split : spelled_splits_) {
    BATON_ASSIGN_OR_RETURN(pieces, split.Split(pieces));
  }
  for (std::string_view& piece : pieces) {
    piece = texts->emplace_back(BytesOfSpelling(piece).value_or(""));
  }
  return pieces;
}

// `at_start`: the first word begins the whole text. What is returned points into `texts`.
absl::StatusOr<std::vector<std::string_view>> Tokenizer::MarkSpaces(
    const std::vector<std::string_view>& words, bool at_start,
    std::deque<std::string>* texts) const {
  using Prepend = MetaspaceRule::Prepend;
  std::vector<std::string_view> marked;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word.empty()) continue;
    const bool may_prepend = metaspace_->prepend == Prepend::kAlways ||
                             (metaspace_->prepend == Prepend::kFirst && at_start && i == 0);
    std::string text = absl::StrReplaceAll(ToAbsl(word), {{" ", metaspace_->replacement}});
    if (may_prepend && !text.starts_with(metaspace_->replacement)) {
      text.insert(0, metaspace_->replacement);
    }
    marked.push_back(texts->emplace_back(std::move(text)));
  }
  if (!metaspace_split_.has_value()) return marked;
  return metaspace_split_->Split(marked);
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids,
                                              bool skip_special) const {
  using First = DecoderRule::First;
  std::string bytes;
  bool first = true;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!HasToken(ids[i])) {
      return absl::InvalidArgumentError(Concat("token id ", ids[i], " at index ", i,
                                               " is not in the vocabulary of ", vocab_size()));
    }
    if (skip_special && IsSpecial(ids[i])) continue;
    bytes.append(TokenBytes(ids[i]));
    if (std::exchange(first, false) && first_decoded_ == First::kWithoutSpaces) {
      std::erase(bytes, ' ');
    }
  }
  if (first_decoded_ == First::kWithoutSpace && bytes.starts_with(' ')) bytes.erase(0, 1);
  std::string text;
  text.reserve(bytes.size());
  if (AppendCharacters(bytes, &text) < bytes.size()) text.append(kReplacementCharacter);
  return text;
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view spelling) const {
  const auto found = id_of_spelling_.find(ToAbsl(spelling));
  if (found == id_of_spelling_.end()) return std::nullopt;
  return found->second;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return InRange(id) ? std::string_view(tokens_[id].bytes) : std::string_view();
}

}  // namespace baton
