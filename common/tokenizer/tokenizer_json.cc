#include "common/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/json/parse_json.h"
#include "common/tokenizer/json_reader.h"
#include "common/tokenizer/words/unicode.h"

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

// Members of a class and a class of PCRE2's: what Rust's `\w` and tokenizer.json's Punctuation
// take.
constexpr std::string_view kWordClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control})";
constexpr std::string_view kPunctuation = R"([!-\x2f:-@\[-`{-~\p{P}])";

// The elements of a component of type Sequence, which stand under `key`, and of those inside it;
// else the component alone.
absl::Status FlattenInto(const JsonReader& component, std::string_view key,
                         std::vector<JsonReader>* flat) {
  if (component["type"].value() != "Sequence") {
    if (flat->size() == kMaxSequence) {
      return component.Malformed(Concat("at most ", kMaxSequence, " elements"));
    }
    flat->push_back(component);
    return absl::OkStatus();
  }
  BATON_RETURN_IF_ERROR(component.ExpectKeys({"type", key}));
  const JsonReader elements = component[key];
  BATON_RETURN_IF_ERROR(elements.ExpectArray());
  // An empty sequence inside another costs nothing but depth, which the JSON parser bounds.
  if (elements.size() > kMaxSequence) {
    return elements.Malformed(Concat("at most ", kMaxSequence, " elements"));
  }
  for (size_t i = 0; i < elements.size(); ++i) {
    BATON_RETURN_IF_ERROR(FlattenInto(elements[i], key, flat));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<JsonReader>> Flatten(const JsonReader& component, std::string_view key) {
  std::vector<JsonReader> flat;
  BATON_RETURN_IF_ERROR(FlattenInto(component, key, &flat));
  return flat;
}

// {"Regex": ...} or {"String": ...}.
absl::StatusOr<SplitRule> ReadPattern(const JsonReader& pattern) {
  BATON_RETURN_IF_ERROR(pattern.ExpectKeys({"Regex", "String"}));
  SplitRule rule;
  const bool literal = !pattern["String"].IsNull();
  const JsonReader text = pattern[literal ? "String" : "Regex"];
  BATON_ASSIGN_OR_RETURN(rule.pattern, text.String());
  if (rule.pattern.empty()) return text.Malformed("a text that isn't empty");
  rule.syntax = literal ? SplitRule::Syntax::kLiteral : SplitRule::Syntax::kOniguruma;
  return rule;
}

absl::StatusOr<NormalizerStep> ReadNormalizerStep(const JsonReader& element) {
  using Kind = NormalizerStep::Kind;
  static constexpr std::pair<std::string_view, Kind> kPlain[] = {
      {"NFC", Kind::kNfc},
      {"NFD", Kind::kNfd},
      {"NFKC", Kind::kNfkc},
      {"NFKD", Kind::kNfkd},
      {"Lowercase", Kind::kLowercase},
      {"StripAccents", Kind::kStripAccents}};
  const JsonReader type = element["type"];
  NormalizerStep step;
  for (const auto& [name, kind] : kPlain) {
    if (type.value() != name) continue;
    step.kind = kind;
    BATON_RETURN_IF_ERROR(element.ExpectKeys({"type"}));
    return step;
  }
  if (type.value() == "Strip") {
    step.kind = Kind::kStrip;
    BATON_RETURN_IF_ERROR(element.ExpectKeys({"type", "strip_left", "strip_right"}));
    BATON_ASSIGN_OR_RETURN(step.left, element["strip_left"].Bool());
    BATON_ASSIGN_OR_RETURN(step.right, element["strip_right"].Bool());
    return step;
  }
  if (type.value() == "Prepend") {
    step.kind = Kind::kPrepend;
    BATON_RETURN_IF_ERROR(element.ExpectKeys({"type", "prepend"}));
    BATON_ASSIGN_OR_RETURN(step.content, element["prepend"].String());
    return step;
  }
  if (type.value() == "Replace") {
    step.kind = Kind::kReplace;
    BATON_RETURN_IF_ERROR(element.ExpectKeys({"type", "pattern", "content"}));
    BATON_ASSIGN_OR_RETURN(step.pattern, ReadPattern(element["pattern"]));
    BATON_ASSIGN_OR_RETURN(step.content, element["content"].String());
    return step;
  }
  return type.Unsupported(
      "null, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace and Sequence");
}

absl::Status ReadNormalizer(const JsonReader& normalizer, TokenizerSpec* spec) {
  if (normalizer.IsNull()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements,
                         Flatten(normalizer, "normalizers"));
  for (const JsonReader& element : elements) {
    BATON_ASSIGN_OR_RETURN(NormalizerStep step, ReadNormalizerStep(element));
    spec->normalizer.push_back(std::move(step));
  }
  return absl::OkStatus();
}

absl::StatusOr<SplitBehavior> ReadBehavior(const JsonReader& behavior) {
  static constexpr std::pair<std::string_view, SplitBehavior> kNames[] = {
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  for (const auto& [name, value] : kNames) {
    if (behavior.value() == name) return value;
  }
  return behavior.Unsupported(
      "Isolated, Removed, MergedWithPrevious, MergedWithNext and Contiguous");
}

absl::Status ReadSplit(const JsonReader& split, TokenizerSpec* spec) {
  BATON_RETURN_IF_ERROR(split.ExpectKeys({"type", "pattern", "behavior", "invert"}));
  BATON_ASSIGN_OR_RETURN(SplitRule rule, ReadPattern(split["pattern"]));
  BATON_ASSIGN_OR_RETURN(rule.behavior, ReadBehavior(split["behavior"]));
  BATON_ASSIGN_OR_RETURN(rule.invert, split["invert"].Bool(false));
  spec->splits.push_back(std::move(rule));
  return absl::OkStatus();
}

SplitRule PcreRule(std::string pattern, SplitBehavior behavior, bool invert = false) {
  return {std::move(pattern), SplitRule::Syntax::kPcre2, behavior, invert};
}

absl::Status ReadDigits(const JsonReader& digits, TokenizerSpec* spec) {
  BATON_RETURN_IF_ERROR(digits.ExpectKeys({"type", "individual_digits"}));
  BATON_ASSIGN_OR_RETURN(const bool individual, digits["individual_digits"].Bool(false));
  spec->splits.push_back(
      PcreRule("\\p{N}", individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
  return absl::OkStatus();
}

absl::Status ReadPunctuation(const JsonReader& punctuation, TokenizerSpec* spec) {
  BATON_RETURN_IF_ERROR(punctuation.ExpectKeys({"type", "behavior"}));
  SplitRule rule = PcreRule(std::string(kPunctuation), SplitBehavior::kIsolated);
  if (!punctuation["behavior"].IsNull()) {
    BATON_ASSIGN_OR_RETURN(rule.behavior, ReadBehavior(punctuation["behavior"]));
  }
  spec->splits.push_back(std::move(rule));
  return absl::OkStatus();
}

absl::Status ReadDelimiter(const JsonReader& split, TokenizerSpec* spec) {
  BATON_RETURN_IF_ERROR(split.ExpectKeys({"type", "delimiter"}));
  BATON_ASSIGN_OR_RETURN(std::string delimiter, split["delimiter"].String());
  if (delimiter.empty()) return split["delimiter"].Malformed("a character");
  spec->splits.push_back(
      {std::move(delimiter), SplitRule::Syntax::kLiteral, SplitBehavior::kRemoved, false});
  return absl::OkStatus();
}

// Those without keys.
absl::Status ReadPlainSplit(const JsonReader& element, TokenizerSpec* spec) {
  BATON_RETURN_IF_ERROR(element.ExpectKeys({"type"}));
  const SplitRule spaces = PcreRule(Concat("[", kWhiteSpaceClass, "]"), SplitBehavior::kRemoved);
  if (element["type"].value() == "Whitespace") {
    // Runs of word characters and runs of what is neither word nor space are kept.
    spec->splits.push_back(
        PcreRule(Concat("[", kWordClass, "]+|[^", kWordClass, kWhiteSpaceClass, "]+"),
                 SplitBehavior::kRemoved, /*invert=*/true));
    return absl::OkStatus();
  }
  spec->splits.push_back(spaces);
  if (element["type"].value() == "BertPreTokenizer") {
    spec->splits.push_back(PcreRule(std::string(kPunctuation), SplitBehavior::kIsolated));
  }
  return absl::OkStatus();
}

absl::Status ReadByteLevel(const JsonReader& element, TokenizerSpec* spec) {
  BATON_RETURN_IF_ERROR(
      element.ExpectKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  BATON_ASSIGN_OR_RETURN(spec->add_prefix_space, element["add_prefix_space"].Bool());
  BATON_ASSIGN_OR_RETURN(const bool use_regex, element["use_regex"].Bool(true));
  if (use_regex) spec->byte_level_split = SplitRule{std::string(kByteLevelPattern)};
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const JsonReader& pre_tokenizer, TokenizerSpec* spec) {
  using Reader = absl::Status (*)(const JsonReader&, TokenizerSpec*);
  static constexpr std::pair<std::string_view, Reader> kReaders[] = {
      {"Split", ReadSplit},
      {"Digits", ReadDigits},
      {"Punctuation", ReadPunctuation},
      {"CharDelimiterSplit", ReadDelimiter},
      {"Whitespace", ReadPlainSplit},
      {"WhitespaceSplit", ReadPlainSplit},
      {"BertPreTokenizer", ReadPlainSplit}};
  constexpr char kSupported[] =
      "ByteLevel, after any number of Split, Digits, Punctuation, Whitespace, WhitespaceSplit, "
      "CharDelimiterSplit and BertPreTokenizer";
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements,
                         Flatten(pre_tokenizer, "pretokenizers"));
  for (size_t i = 0; i < elements.size(); ++i) {
    const JsonReader type = elements[i]["type"];
    // It turns its input into bytes, so it must be last.
    if (i + 1 == elements.size() && type.value() == "ByteLevel") {
      return ReadByteLevel(elements[i], spec);
    }
    const auto* const reader =
        std::find_if(std::begin(kReaders), std::end(kReaders),
                     [&](const auto& entry) { return type.value() == entry.first; });
    if (reader == std::end(kReaders)) return type.Unsupported(kSupported);
    BATON_RETURN_IF_ERROR(reader->second(elements[i], spec));
  }
  return pre_tokenizer.Unsupported(kSupported);
}

// Fuse only joins what is joined here anyway.
absl::Status ReadDecoder(const JsonReader& decoder) {
  BATON_RETURN_IF_ERROR(decoder.ExpectObject());
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements, Flatten(decoder, "decoders"));
  bool byte_level = false;
  for (const JsonReader& element : elements) {
    const JsonReader type = element["type"];
    if (type.value() == "ByteLevel") {
      byte_level = true;
    } else if (!byte_level || type.value() != "Fuse") {
      return type.Unsupported("ByteLevel, alone or before Fuse");
    }
  }
  return byte_level ? absl::OkStatus() : decoder.Unsupported("ByteLevel");
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
  if (!model["dropout"].IsNull() && model["dropout"].value() != 0) {
    return model["dropout"].Unsupported("null or 0");
  }
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
