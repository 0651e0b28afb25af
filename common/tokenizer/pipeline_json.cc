#include "common/tokenizer/pipeline_json.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/words/unicode.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {
namespace {

// What the ByteLevel pre-tokenizer splits by where use_regex is true: GPT-2's pattern, part of the
// format.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Members of a class and a class of PCRE2's: what Rust's `\w` and tokenizer.json's Punctuation
// take.
constexpr std::string_view kWordClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control})";
constexpr std::string_view kPunctuation = R"([!-\x2f:-@\[-`{-~\p{P}])";

// The entry of `names` that `name` is; null if it is none.
template <typename T, size_t N>
const T* Named(const JsonReader& name, const std::pair<std::string_view, T> (&names)[N]) {
  for (const auto& [text, entry] : names) {
    if (name.value() == text) return &entry;
  }
  return nullptr;
}

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
  if (const Kind* const kind = Named(type, kPlain)) {
    step.kind = *kind;
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
  if (type.value() == "Precompiled") {
    step.kind = Kind::kCharsmap;
    BATON_RETURN_IF_ERROR(element.ExpectKeys({"type", "precompiled_charsmap"}));
    const JsonReader table = element["precompiled_charsmap"];
    BATON_ASSIGN_OR_RETURN(const std::string text, table.String());
    if (!absl::Base64Unescape(text, &step.content)) return table.Malformed("base64");
    return step;
  }
  return type.Unsupported(
      "null, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace, Precompiled "
      "and Sequence");
}

absl::StatusOr<SplitBehavior> ReadBehavior(const JsonReader& behavior) {
  static constexpr std::pair<std::string_view, SplitBehavior> kNames[] = {
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  if (const SplitBehavior* const known = Named(behavior, kNames)) return *known;
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
  if (element["type"].value() == "Whitespace") {
    // Runs of word characters and runs of what is neither word nor space are kept.
    spec->splits.push_back(
        PcreRule(Concat("[", kWordClass, "]+|[^", kWordClass, kWhiteSpaceClass, "]+"),
                 SplitBehavior::kRemoved, /*invert=*/true));
    return absl::OkStatus();
  }
  spec->splits.push_back(PcreRule(Concat("[", kWhiteSpaceClass, "]"), SplitBehavior::kRemoved));
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

absl::Status ReadMetaspaceKeys(const JsonReader& element, MetaspaceRule* rule) {
  using Prepend = MetaspaceRule::Prepend;
  static constexpr std::pair<std::string_view, Prepend> kSchemes[] = {
      {"always", Prepend::kAlways}, {"first", Prepend::kFirst}, {"never", Prepend::kNever}};
  // "str_rep" and "add_prefix_space" are of older files.
  BATON_RETURN_IF_ERROR(element.ExpectKeys(
      {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"}));
  BATON_ASSIGN_OR_RETURN(rule->replacement, element["replacement"].String());
  if (CountCharacters(rule->replacement) != 1) {
    return element["replacement"].Malformed("one character");
  }
  BATON_ASSIGN_OR_RETURN(const bool prefix, element["add_prefix_space"].Bool(true));
  BATON_ASSIGN_OR_RETURN(rule->split, element["split"].Bool(true));
  const JsonReader scheme = element["prepend_scheme"];
  if (scheme.IsNull()) {
    rule->prepend = prefix ? Prepend::kAlways : Prepend::kNever;
    return absl::OkStatus();
  }
  const Prepend* const known = Named(scheme, kSchemes);
  if (known == nullptr) return scheme.Unsupported("always, first and never");
  rule->prepend = *known;
  return absl::OkStatus();
}

// `fused`: the tokens' texts are one by now.
absl::Status ReadDecoderStep(const JsonReader& element, bool* fused, DecoderRule* decoder) {
  const JsonReader type = element["type"];
  if (type.value() == "Replace" && !*fused) {
    BATON_RETURN_IF_ERROR(element.ExpectKeys({"type", "pattern", "content"}));
    BATON_ASSIGN_OR_RETURN(const SplitRule pattern, ReadPattern(element["pattern"]));
    if (pattern.syntax != SplitRule::Syntax::kLiteral) {
      return element["pattern"].Unsupported("a String");
    }
    BATON_ASSIGN_OR_RETURN(std::string content, element["content"].String());
    decoder->replacements.emplace_back(pattern.pattern, std::move(content));
    return absl::OkStatus();
  }
  if (type.value() == "ByteFallback" && !*fused) {
    decoder->byte_fallback = true;
    return element.ExpectKeys({"type"});
  }
  if (type.value() == "Fuse") {
    *fused = true;
    return element.ExpectKeys({"type"});
  }
  if (type.value() == "Strip" && *fused) {
    BATON_RETURN_IF_ERROR(element.ExpectKeys({"type", "content", "start", "stop"}));
    const bool one_space = element["content"].value() == " " && element["start"].value() == 1 &&
                           element["stop"].value() == 0;
    if (!one_space) return element.Unsupported("one space at the start");
    decoder->first = DecoderRule::First::kWithoutSpace;
    return absl::OkStatus();
  }
  if (type.value() == "Metaspace" && !*fused) {
    MetaspaceRule rule;
    BATON_RETURN_IF_ERROR(ReadMetaspaceKeys(element, &rule));
    decoder->replacements.emplace_back(rule.replacement, " ");
    if (rule.prepend != MetaspaceRule::Prepend::kNever) {
      decoder->first = DecoderRule::First::kWithoutSpaces;
    }
    return absl::OkStatus();
  }
  return type.Unsupported(
      "Metaspace, or Replace, ByteFallback, Fuse and Strip; ByteLevel where the pre-tokenizer is");
}

}  // namespace

absl::StatusOr<std::vector<JsonReader>> Flatten(const JsonReader& component, std::string_view key) {
  std::vector<JsonReader> flat;
  BATON_RETURN_IF_ERROR(FlattenInto(component, key, &flat));
  return flat;
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
      "any number of Split, Digits, Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit "
      "and BertPreTokenizer, and one ByteLevel among them or Metaspace behind them";
  spec->bpe.byte_level = false;
  if (pre_tokenizer.IsNull()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements,
                         Flatten(pre_tokenizer, "pretokenizers"));
  size_t before_spelling = 0;
  for (size_t i = 0; i < elements.size(); ++i) {
    const JsonReader type = elements[i]["type"];
    if (type.value() == "ByteLevel" && !spec->bpe.byte_level) {
      spec->bpe.byte_level = true;
      before_spelling = spec->splits.size();
      BATON_RETURN_IF_ERROR(ReadByteLevel(elements[i], spec));
      continue;
    }
    if (i + 1 == elements.size() && type.value() == "Metaspace" && !spec->bpe.byte_level) {
      return ReadMetaspaceKeys(elements[i], &spec->metaspace.emplace());
    }
    const Reader* const reader = Named(type, kReaders);
    if (reader == nullptr) return type.Unsupported(kSupported);
    BATON_RETURN_IF_ERROR((*reader)(elements[i], spec));
  }
  if (!spec->bpe.byte_level) return absl::OkStatus();
  const auto spelled = spec->splits.begin() + static_cast<ptrdiff_t>(before_spelling);
  spec->spelled_splits.assign(spelled, spec->splits.end());
  spec->splits.erase(spelled, spec->splits.end());
  return absl::OkStatus();
}

absl::Status ReadDecoder(const JsonReader& decoder, TokenizerSpec* spec) {
  BATON_RETURN_IF_ERROR(decoder.ExpectObject());
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements, Flatten(decoder, "decoders"));
  if (!spec->bpe.byte_level) {
    bool fused = false;
    for (const JsonReader& element : elements) {
      BATON_RETURN_IF_ERROR(ReadDecoderStep(element, &fused, &spec->decoder));
    }
    return absl::OkStatus();
  }
  bool byte_level = false;
  for (const JsonReader& element : elements) {
    const JsonReader type = element["type"];
    // Fuse only joins what is joined here anyway.
    if (type.value() == "ByteLevel") {
      byte_level = true;
    } else if (!byte_level || type.value() != "Fuse") {
      return type.Unsupported("ByteLevel, alone or before Fuse, as the pre-tokenizer is");
    }
  }
  return byte_level ? absl::OkStatus() : decoder.Unsupported("ByteLevel");
}

}  // namespace baton
