#include "common/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/json/parse_json.h"
#include "common/tokenizer/json_reader.h"
#include "common/tokenizer/pipeline_json.h"

namespace baton {
namespace {

constexpr size_t kMaxMerges = 4 * static_cast<size_t>(kMaxVocabSize);
constexpr size_t kMaxAddedTokens = 1 << 16;
constexpr size_t kMaxAddedTokenBytes = 1024;

absl::Status ReadVocab(const JsonReader& vocab, TokenizerSpec* spec) {
  BATON_RETURN_IF_ERROR(vocab.ExpectObject());
  if (vocab.size() > static_cast<size_t>(kMaxVocabSize)) {
    return vocab.Malformed(Concat("at most ", kMaxVocabSize, " tokens"));
  }
  spec->vocab.reserve(vocab.size());
  absl::flat_hash_map<int32_t, std::string_view> spelling_of_id;
  spelling_of_id.reserve(vocab.size());
  for (const auto& [spelling, value] : vocab.value().items()) {
    // The path of an error is made only when there is one: vocabularies are large.
    const bool in_range =
        value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(kMaxVocabSize);
    if (!in_range) return vocab[spelling].Id(kMaxVocabSize).status();
    const auto id = value.get<int32_t>();
    const auto [other, inserted] = spelling_of_id.emplace(id, spelling);
    if (!inserted) {
      return absl::InvalidArgumentError(Concat(vocab.path(), ": \"", other->second, "\" and \"",
                                               spelling, "\" both have id ", id));
    }
    spec->vocab.push_back({spelling, id});
  }
  return absl::OkStatus();
}

absl::StatusOr<MergeRule> ReadMerge(const JsonReader& merges, size_t index) {
  const nlohmann::json& rule = merges.value()[index];
  if (rule.is_array() && rule.size() == 2 && rule[0].is_string() && rule[1].is_string()) {
    return MergeRule{rule[0].get<std::string>(), rule[1].get<std::string>()};
  }
  if (rule.is_string()) {
    const auto& text = rule.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return MergeRule{text.substr(0, space), text.substr(space + 1)};
    }
  }
  return merges[index].Malformed("\"left right\" or [\"left\", \"right\"]");
}

absl::Status ReadBpe(const JsonReader& model, TokenizerSpec* spec) {
  BATON_RETURN_IF_ERROR(model.ExpectKeys(
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  if (!model["dropout"].IsNull() && model["dropout"].value() != 0) {
    return model["dropout"].Unsupported("null or 0");
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonReader affix = model[key];
    if (affix.IsNull()) continue;
    BATON_ASSIGN_OR_RETURN(const std::string text, affix.String());
    if (!text.empty()) return affix.Unsupported("null or \"\"");
  }
  BATON_ASSIGN_OR_RETURN(spec->bpe.ignore_merges, model["ignore_merges"].Bool(false));
  BATON_ASSIGN_OR_RETURN(spec->bpe.byte_fallback, model["byte_fallback"].Bool(false));
  BATON_ASSIGN_OR_RETURN(spec->bpe.fuse_unk, model["fuse_unk"].Bool(false));
  if (!model["unk_token"].IsNull()) {
    BATON_ASSIGN_OR_RETURN(spec->bpe.unk_token, model["unk_token"].String());
  }
  BATON_RETURN_IF_ERROR(ReadVocab(model["vocab"], spec));
  const JsonReader merges = model["merges"];
  BATON_RETURN_IF_ERROR(merges.ExpectArray());
  if (merges.size() > kMaxMerges) {
    return merges.Malformed(Concat("at most ", kMaxMerges, " merges"));
  }
  spec->merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(MergeRule rule, ReadMerge(merges, i));
    spec->merges.push_back(std::move(rule));
  }
  return absl::OkStatus();
}

// A list of pieces and their scores; ids are places in it.
absl::Status ReadUnigram(const JsonReader& model, TokenizerSpec* spec) {
  BATON_RETURN_IF_ERROR(model.ExpectKeys({"type", "unk_id", "vocab", "byte_fallback"}));
  BATON_ASSIGN_OR_RETURN(spec->bpe.byte_fallback, model["byte_fallback"].Bool(false));
  const JsonReader vocab = model["vocab"];
  BATON_RETURN_IF_ERROR(vocab.ExpectArray());
  if (vocab.size() == 0 || vocab.size() > static_cast<size_t>(kMaxVocabSize)) {
    return vocab.Malformed(Concat("1 to ", kMaxVocabSize, " pieces"));
  }
  BATON_ASSIGN_OR_RETURN(spec->unk_id, model["unk_id"].Id(static_cast<int32_t>(vocab.size())));
  for (size_t i = 0; i < vocab.size(); ++i) {
    const nlohmann::json& entry = vocab.value()[i];
    const bool fits = entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
                      entry[1].is_number() && std::isfinite(entry[1].get<double>());
    if (!fits) return vocab[i].Malformed("a piece and its score");
    spec->vocab.push_back({entry[0].get<std::string>(), static_cast<int32_t>(i)});
    spec->scores.push_back(entry[1].get<double>());
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const JsonReader& model, TokenizerSpec* spec) {
  // Files of older libraries leave the type of BPE out.
  const JsonReader type = model["type"];
  if (type.value() == "Unigram") {
    spec->is_unigram = true;
    return ReadUnigram(model, spec);
  }
  if (type.IsNull() || type.value() == "BPE") return ReadBpe(model, spec);
  return type.Unsupported("BPE and Unigram");
}

absl::StatusOr<AddedToken> ReadAddedToken(const JsonReader& entry) {
  BATON_RETURN_IF_ERROR(entry.ExpectKeys(
      {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  AddedToken token;
  BATON_ASSIGN_OR_RETURN(token.id, entry["id"].Id(kMaxVocabSize));
  BATON_ASSIGN_OR_RETURN(token.content, entry["content"].String());
  if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
    return entry["content"].Malformed(Concat("1 to ", kMaxAddedTokenBytes, " bytes"));
  }
  BATON_ASSIGN_OR_RETURN(token.special, entry["special"].Bool());
  BATON_ASSIGN_OR_RETURN(token.normalized, entry["normalized"].Bool());
  BATON_ASSIGN_OR_RETURN(token.strip_left, entry["lstrip"].Bool());
  BATON_ASSIGN_OR_RETURN(token.strip_right, entry["rstrip"].Bool());
  BATON_ASSIGN_OR_RETURN(token.single_word, entry["single_word"].Bool());
  return token;
}

// Ids are one space: a content has one id, an id one content, over vocabulary and added tokens.
absl::Status ReadAddedTokens(const JsonReader& added_tokens, TokenizerSpec* spec) {
  if (added_tokens.IsNull()) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(added_tokens.ExpectArray());
  if (added_tokens.size() > kMaxAddedTokens) {
    return added_tokens.Malformed(Concat("at most ", kMaxAddedTokens, " tokens"));
  }
  absl::flat_hash_map<std::string, int32_t> id_of;
  absl::flat_hash_map<int32_t, std::string> content_of;
  for (const VocabEntry& entry : spec->vocab) {
    id_of.emplace(entry.spelling, entry.id);
    content_of.emplace(entry.id, entry.spelling);
  }
  for (size_t i = 0; i < added_tokens.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(added_tokens[i]));
    const int32_t known_id = id_of.emplace(token.content, token.id).first->second;
    if (known_id != token.id) {
      return added_tokens[i]["id"].Malformed(
          Concat(known_id, ", the id that \"", token.content, "\" already has"));
    }
    const std::string& holder = content_of.emplace(token.id, token.content).first->second;
    if (holder != token.content) {
      return added_tokens[i]["id"].Malformed(
          Concat("an id of its own; \"", holder, "\" has this one"));
    }
    spec->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status CheckTemplateIds(const TokenizerSpec& spec) {
  std::vector<int32_t> ids = spec.prefix_ids;
  ids.insert(ids.end(), spec.suffix_ids.begin(), spec.suffix_ids.end());
  for (const int32_t id : ids) {
    const auto has_id = [id](const auto& token) { return token.id == id; };
    if (std::none_of(spec.added_tokens.begin(), spec.added_tokens.end(), has_id) &&
        std::none_of(spec.vocab.begin(), spec.vocab.end(), has_id)) {
      return absl::InvalidArgumentError(
          Concat("post_processor: adds id ", id, ", which no token has"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view json_text) {
  BATON_ASSIGN_OR_RETURN(const nlohmann::json document,
                         ParseJson(json_text, "", DuplicateKeys::kKeepLast));
  const JsonReader root(document);
  if (!root.IsObject()) return absl::InvalidArgumentError("expected an object at the top level");
  BATON_RETURN_IF_ERROR(
      root.ExpectKeys({"version", "truncation", "padding", "added_tokens", "normalizer",
                       "pre_tokenizer", "post_processor", "decoder", "model"}));
  if (!root["version"].IsNull() && root["version"].value() != "1.0") {
    return root["version"].Unsupported("\"1.0\"");
  }
  TokenizerSpec spec;
  BATON_RETURN_IF_ERROR(root["model"].ExpectObject());
  BATON_RETURN_IF_ERROR(ReadModel(root["model"], &spec));
  BATON_RETURN_IF_ERROR(ReadAddedTokens(root["added_tokens"], &spec));
  BATON_RETURN_IF_ERROR(ReadNormalizer(root["normalizer"], &spec));
  BATON_RETURN_IF_ERROR(ReadPreTokenizer(root["pre_tokenizer"], &spec));
  if (spec.bpe.byte_level && spec.is_unigram) {
    return root["pre_tokenizer"].Unsupported("no ByteLevel beside a Unigram model");
  }
  BATON_RETURN_IF_ERROR(ReadPostProcessor(root["post_processor"], &spec));
  BATON_RETURN_IF_ERROR(ReadDecoder(root["decoder"], &spec));
  BATON_RETURN_IF_ERROR(CheckTemplateIds(spec));
  return spec;
}

}  // namespace baton
