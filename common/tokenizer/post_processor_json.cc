// What tokenizer.json's post-processor puts around a text.
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/pipeline_json.h"

namespace baton {
namespace {

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

// A token before the text and one behind it: ["<s>", 0].
absl::Status ReadAround(const JsonReader& processor, TokenizerSpec* spec) {
  BATON_RETURN_IF_ERROR(
      processor.ExpectKeys({"type", "sep", "cls", "trim_offsets", "add_prefix_space"}));
  for (const auto& [key, ids] :
       {std::pair("cls", &spec->prefix_ids), std::pair("sep", &spec->suffix_ids)}) {
    const JsonReader token = processor[key];
    BATON_RETURN_IF_ERROR(token.ExpectArray());
    if (token.size() != 2) return token.Malformed("a token and its id");
    BATON_ASSIGN_OR_RETURN(const int32_t id, token[1].Id(kMaxVocabSize));
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

}  // namespace

absl::Status ReadPostProcessor(const JsonReader& post_processor, TokenizerSpec* spec) {
  if (post_processor.IsNull()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements,
                         Flatten(post_processor, "processors"));
  bool seen_template = false;
  for (const JsonReader& element : elements) {
    const JsonReader type = element["type"];
    if (type.value() == "ByteLevel") continue;  // Only moves offsets, which Baton doesn't have.
    const bool around = type.value() == "BertProcessing" || type.value() == "RobertaProcessing";
    if (seen_template || (!around && type.value() != "TemplateProcessing")) {
      return type.Unsupported(
          "ByteLevel and one TemplateProcessing, BertProcessing or RobertaProcessing");
    }
    BATON_RETURN_IF_ERROR(around ? ReadAround(element, spec) : ReadTemplate(element, spec));
    seen_template = true;
  }
  return absl::OkStatus();
}

}  // namespace baton
