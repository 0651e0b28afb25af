#include "common/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/json/parse_json.h"
#include "common/tokenizer/json_reader.h"

namespace baton {
namespace {

constexpr size_t kMaxMerges = 4 * static_cast<size_t>(kMaxVocabSize);
constexpr size_t kMaxAddedTokens = 1 << 16;
constexpr size_t kMaxAddedTokenBytes = 1024;
constexpr size_t kMaxSequence = 16;

// What the ByteLevel pre-tokenizer splits by where use_regex is true: GPT-2's pattern, part of the
// format.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The elements of a component of type Sequence, which stand under `key`; else the component alone.
absl::StatusOr<std::vector<JsonReader>> Flatten(const JsonReader& component, std::string_view key) {
  const JsonReader type = component["type"];
  if (type.value() != "Sequence") return std::vector<JsonReader>{component};
  BATON_RETURN_IF_ERROR(component.ExpectKeys({"type", key}));
  const JsonReader elements = component[key];
  BATON_RETURN_IF_ERROR(elements.ExpectArray());
  if (elements.size() > kMaxSequence) {
    return elements.Malformed(Concat("at most ", kMaxSequence, " elements"));
  }
  std::vector<JsonReader> flat;
  for (size_t i = 0; i < elements.size(); ++i) flat.push_back(elements[i]);
  return flat;
}

absl::Status ReadNormalizer(const JsonReader& normalizer, TokenizerSpec* spec) {
  if (normalizer.IsNull()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements,
                         Flatten(normalizer, "normalizers"));
  for (const JsonReader& element : elements) {
    if (element["type"].value() != "NFC") return element["type"].Unsupported("null or NFC");
    BATON_RETURN_IF_ERROR(element.ExpectKeys({"type"}));
    spec->normalize_nfc = true;
  }
  return absl::OkStatus();
}

absl::Status ReadSplit(const JsonReader& split, TokenizerSpec* spec) {
  BATON_RETURN_IF_ERROR(split.ExpectKeys({"type", "pattern", "behavior", "invert"}));
  if (split["behavior"].value() != "Isolated") return split["behavior"].Unsupported("Isolated");
  BATON_ASSIGN_OR_RETURN(const bool invert, split["invert"].Bool(false));
  if (invert) return split["invert"].Unsupported("false");
  const JsonReader pattern = split["pattern"];
  BATON_RETURN_IF_ERROR(pattern.ExpectKeys({"Regex"}));
  BATON_ASSIGN_OR_RETURN(std::string regex, pattern["Regex"].String());
  spec->split_patterns.push_back(std::move(regex));
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const JsonReader& pre_tokenizer, TokenizerSpec* spec) {
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements,
                         Flatten(pre_tokenizer, "pretokenizers"));
  for (size_t i = 0; i < elements.size(); ++i) {
    const JsonReader& element = elements[i];
    const JsonReader type = element["type"];
    const bool last = i + 1 == elements.size();
    if (!last && type.value() == "Split") {
      BATON_RETURN_IF_ERROR(ReadSplit(element, spec));
      continue;
    }
    if (!last || type.value() != "ByteLevel") {
      return type.Unsupported("ByteLevel, after any number of Split");
    }
    BATON_RETURN_IF_ERROR(
        element.ExpectKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    BATON_ASSIGN_OR_RETURN(const bool add_prefix_space, element["add_prefix_space"].Bool());
    if (add_prefix_space) return element["add_prefix_space"].Unsupported("false");
    BATON_ASSIGN_OR_RETURN(const bool use_regex, element["use_regex"].Bool(true));
    if (use_regex) spec->split_patterns.emplace_back(kByteLevelPattern);
    return absl::OkStatus();
  }
  return pre_tokenizer.Unsupported("ByteLevel, after any number of Split");
}

absl::Status ReadDecoder(const JsonReader& decoder) {
  BATON_RETURN_IF_ERROR(decoder.ExpectObject());
  if (decoder["type"].value() != "ByteLevel") return decoder["type"].Unsupported("ByteLevel");
  return absl::OkStatus();
}

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

absl::Status ReadModel(const JsonReader& model, TokenizerSpec* spec) {
  // unk_token, fuse_unk and byte_fallback have no effect: every byte has a token (bpe.h).
  BATON_RETURN_IF_ERROR(model.ExpectKeys(
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  if (model["type"].value() != "BPE") return model["type"].Unsupported("BPE");
  if (!model["dropout"].IsNull()) return model["dropout"].Unsupported("null");
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonReader affix = model[key];
    if (affix.IsNull()) continue;
    BATON_ASSIGN_OR_RETURN(const std::string text, affix.String());
    if (!text.empty()) return affix.Unsupported("null or \"\"");
  }
  BATON_ASSIGN_OR_RETURN(spec->ignore_merges, model["ignore_merges"].Bool(false));
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

absl::Status AppendTemplateIds(const JsonReader& token, const JsonReader& special_tokens,
                               std::vector<int32_t>* ids) {
  BATON_ASSIGN_OR_RETURN(const std::string name, token["id"].String());
  const JsonReader token_ids = special_tokens[name]["ids"];
  BATON_RETURN_IF_ERROR(token_ids.ExpectArray());
  if (token_ids.size() > kMaxSequence) {
    return token_ids.Malformed(Concat("at most ", kMaxSequence, " ids"));
  }
  for (size_t i = 0; i < token_ids.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const int32_t id, token_ids[i].Id(kMaxVocabSize));
    ids->push_back(id);
  }
  return absl::OkStatus();
}

// "single" is what stands around one text; "pair" is for two, which Baton never encodes.
absl::Status ReadTemplate(const JsonReader& processor, TokenizerSpec* spec) {
  BATON_RETURN_IF_ERROR(processor.ExpectKeys({"type", "single", "pair", "special_tokens"}));
  const JsonReader single = processor["single"];
  BATON_RETURN_IF_ERROR(single.ExpectArray());
  if (single.size() > kMaxSequence) {
    return single.Malformed(Concat("at most ", kMaxSequence, " elements"));
  }
  bool seen_text = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const JsonReader piece = single[i];
    BATON_RETURN_IF_ERROR(piece.ExpectKeys({"SpecialToken", "Sequence"}));
    if (!piece["SpecialToken"].IsNull()) {
      BATON_RETURN_IF_ERROR(AppendTemplateIds(piece["SpecialToken"], processor["special_tokens"],
                                              seen_text ? &spec->suffix_ids : &spec->prefix_ids));
      continue;
    }
    if (seen_text || piece["Sequence"]["id"].value() != "A") {
      return piece.Unsupported("one Sequence with id A");
    }
    seen_text = true;
  }
  return seen_text ? absl::OkStatus() : single.Malformed("one Sequence with id A");
}

absl::Status ReadPostProcessor(const JsonReader& post_processor, TokenizerSpec* spec) {
  if (post_processor.IsNull()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements,
                         Flatten(post_processor, "processors"));
  bool seen_template = false;
  for (const JsonReader& element : elements) {
    const JsonReader type = element["type"];
    if (type.value() == "ByteLevel") continue;  // Only moves offsets, which Baton doesn't have.
    if (type.value() != "TemplateProcessing" || seen_template) {
      return type.Unsupported("ByteLevel and one TemplateProcessing");
    }
    BATON_RETURN_IF_ERROR(ReadTemplate(element, spec));
    seen_template = true;
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
  for (const std::string_view key : {"truncation", "padding"}) {
    if (!root[key].IsNull()) return root[key].Unsupported("null");
  }
  TokenizerSpec spec;
  BATON_RETURN_IF_ERROR(root["model"].ExpectObject());
  BATON_RETURN_IF_ERROR(ReadModel(root["model"], &spec));
  BATON_RETURN_IF_ERROR(ReadAddedTokens(root["added_tokens"], &spec));
  BATON_RETURN_IF_ERROR(ReadNormalizer(root["normalizer"], &spec));
  BATON_RETURN_IF_ERROR(ReadPreTokenizer(root["pre_tokenizer"], &spec));
  BATON_RETURN_IF_ERROR(ReadPostProcessor(root["post_processor"], &spec));
  BATON_RETURN_IF_ERROR(ReadDecoder(root["decoder"]));
  BATON_RETURN_IF_ERROR(CheckTemplateIds(spec));
  return spec;
}

}  // namespace baton
