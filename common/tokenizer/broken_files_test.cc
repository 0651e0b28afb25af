// What loading says of tokenizers' files that are malformed or ask for what isn't supported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/tokenizer/testing/test_tokenizer.h"
#include "common/tokenizer/tiktoken_file.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Each row breaks a good tokenizer.json at one place; the message must name the place.
struct BrokenRow {
  const char* name;
  std::function<void(json&)> breaks;
  absl::StatusCode code;
  const char* message;
};

constexpr auto kMalformed = absl::StatusCode::kInvalidArgument;
constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;

const std::vector<BrokenRow>& BrokenRows() {
  static const auto* rows = new std::vector<BrokenRow>{
      {"root", [](json& j) { j = json::array(); }, kMalformed, "top level"},
      {"unknown key", [](json& j) { j["extra"] = 1; }, kUnsupported, "extra: unknown key"},
      {"version", [](json& j) { j["version"] = "2.0"; }, kUnsupported, "version: is \"2.0\""},
      {"no model", [](json& j) { j.erase("model"); }, kMalformed, "model: is missing"},
      {"model type", [](json& j) { j["model"]["type"] = "WordPiece"; }, kUnsupported,
       "model.type: is \"WordPiece\"; supported: BPE and Unigram"},
      {"model key", [](json& j) { j["model"]["max_input_chars"] = 100; }, kUnsupported,
       "model.max_input_chars: unknown key"},
      {"dropout", [](json& j) { j["model"]["dropout"] = 0.1; }, kUnsupported, "model.dropout"},
      {"prefix", [](json& j) { j["model"]["continuing_subword_prefix"] = "##"; }, kUnsupported,
       "model.continuing_subword_prefix"},
      {"suffix", [](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, kUnsupported,
       "model.end_of_word_suffix"},
      {"ignore_merges", [](json& j) { j["model"]["ignore_merges"] = "yes"; }, kMalformed,
       "model.ignore_merges: is \"yes\"; expected true or false"},
      {"no vocab", [](json& j) { j["model"].erase("vocab"); }, kMalformed, "model.vocab"},
      {"vocab array", [](json& j) { j["model"]["vocab"] = {"a"}; }, kMalformed, "model.vocab"},
      {"missing byte", [](json& j) { j["model"]["vocab"].erase("a"); }, kMalformed, "byte 97"},
      {"negative id", [](json& j) { j["model"]["vocab"]["a"] = -1; }, kMalformed,
       "model.vocab.a: is -1; expected an integer"},
      {"fractional id", [](json& j) { j["model"]["vocab"]["a"] = 1.5; }, kMalformed,
       "model.vocab.a: is 1.5"},
      {"huge id", [](json& j) { j["model"]["vocab"]["a"] = uint64_t{1} << 63; }, kMalformed,
       "model.vocab.a: is 9223372036854775808"},
      {"duplicate id", [](json& j) { j["model"]["vocab"]["a"] = 'b'; }, kMalformed,
       "\"a\" and \"b\" both have id 98"},
      {"no merges", [](json& j) { j["model"].erase("merges"); }, kMalformed, "model.merges"},
      {"merge of three", [](json& j) { j["model"]["merges"][1] = "h e l"; }, kMalformed,
       "model.merges[1]"},
      {"merge of one", [](json& j) { j["model"]["merges"][1] = {"h"}; }, kMalformed,
       "model.merges[1]"},
      {"merge of numbers",
       [](json& j) {
         j["model"]["merges"][1] = {1, 2};
       },
       kMalformed, "model.merges[1]"},
      {"merge without result", [](json& j) { j["model"]["merges"][1] = "h h"; }, kMalformed,
       "model.merges[1]: \"hh\" is not in model.vocab"},
      {"normalizer",
       [](json& j) {
         j["normalizer"] = {{"type", "BertNormalizer"}};
       },
       kUnsupported, "normalizer.type: is \"BertNormalizer\"; supported: null, NFC"},
      {"nested normalizer",
       [](json& j) {
         j["normalizer"] = {{"type", "Sequence"},
                            {"normalizers", {{{"type", "NFC"}}, {{"type", "Nmt"}}}}};
       },
       kUnsupported, "normalizer.normalizers[1].type"},
      {"replace without pattern",
       [](json& j) {
         j["normalizer"] = {{"type", "Replace"}, {"content", "x"}};
       },
       kMalformed, "normalizer.pattern"},
      {"replace nothing",
       [](json& j) {
         j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}};
       },
       kMalformed, "normalizer.pattern.String"},
      {"no pre_tokenizer", [](json& j) { j.erase("pre_tokenizer"); }, kUnsupported,
       "decoder.type: is \"ByteLevel\"; supported: "},
      {"pre_tokenizer",
       [](json& j) {
         j["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
       },
       kUnsupported, "pre_tokenizer.type: is \"UnicodeScripts\"; supported: any number of Split"},
      {"metaspace",
       [](json& j) {
         j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "__"}};
       },
       kMalformed, "pre_tokenizer.replacement: is \"__\"; expected one character"},
      {"metaspace's scheme",
       [](json& j) {
         j["pre_tokenizer"] = {
             {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}};
       },
       kUnsupported, "pre_tokenizer.prepend_scheme"},
      {"decoder of characters",
       [](json& j) {
         j["pre_tokenizer"] = nullptr;
         j["decoder"] = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
       },
       kUnsupported, "decoder.type: is \"Strip\""},
      {"charsmap",
       [](json& j) {
         j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "BAAA"}};
       },
       kMalformed, "normalizer: precompiled_charsmap: is cut off"},
      {"charsmap's trie",
       [](json& j) {
         j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "/////w=="}};
       },
       kMalformed, "its trie is cut off"},
      {"charsmap's base64",
       [](json& j) {
         j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "!"}};
       },
       kMalformed, "normalizer.precompiled_charsmap"},
      {"unigram without scores",
       [](json& j) {
         j["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", {"a"}}};
       },
       kMalformed, "model.vocab[0]"},
      {"unigram's unknown",
       [](json& j) {
         j["model"] = {
             {"type", "Unigram"}, {"unk_id", 1}, {"vocab", json::array({json::array({"a", 0.5})})}};
       },
       kMalformed, "model.unk_id"},
      {"unknown token",
       [](json& j) {
         j["pre_tokenizer"] = nullptr;
         j["decoder"] = {{"type", "Fuse"}};
         j["model"]["unk_token"] = "<none>";
       },
       kMalformed, "model.unk_token \"<none>\" is not in model.vocab"},
      {"one ByteLevel",
       [](json& j) {
         const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
         j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {byte_level, byte_level}}};
       },
       kUnsupported, "pre_tokenizer.pretokenizers[1].type: is \"ByteLevel\""},
      {"too many in all",
       [](json& j) {
         const json nine(9, {{"type", "Whitespace"}});
         const json inner = {{"type", "Sequence"}, {"pretokenizers", nine}};
         j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {inner, inner}}};
       },
       kMalformed, "at most 16 elements"},
      {"empty sequence",
       [](json& j) {
         j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", json::array()}};
       },
       kUnsupported, "decoder.type"},
      {"post_processor",
       [](json& j) {
         j["post_processor"] = {{"type", "BertProcessing"}};
       },
       kMalformed, "post_processor.cls"},
      {"decoder",
       [](json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       },
       kUnsupported, "decoder.type"},
      {"no decoder", [](json& j) { j["decoder"] = nullptr; }, kMalformed, "decoder"},
      {"added key", [](json& j) { j["added_tokens"][0]["score"] = 1; }, kUnsupported,
       "added_tokens[0].score: unknown key"},
      {"added without flag", [](json& j) { j["added_tokens"][2].erase("special"); }, kMalformed,
       "added_tokens[2].special: is missing"},
      {"empty added", [](json& j) { j["added_tokens"][1]["content"] = ""; }, kMalformed,
       "added_tokens[1].content"},
      {"added takes an id", [](json& j) { j["added_tokens"][1]["id"] = 'a'; }, kMalformed,
       "added_tokens[1].id: is 97; expected an id of its own; \"a\" has this one"},
      {"added twice", [](json& j) { j["added_tokens"][1]["content"] = "<|endoftext|>"; },
       kMalformed, "added_tokens[1].id"},
  };
  return *rows;
}

TEST(BrokenFilesTest, RefusesBrokenFilesByName) {
  for (const BrokenRow& row : BrokenRows()) {
    json definition = TestTokenizerJson();
    row.breaks(definition);
    const absl::Status status = Tokenizer::LoadFromJson(definition.dump()).status();
    EXPECT_EQ(status.code(), row.code) << row.name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.message)) << row.name;
  }
}

// Splits and templates have shapes of their own.
TEST(BrokenFilesTest, RefusesBrokenSplitsAndTemplatesByName) {
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "\\s+"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const auto error = [](const char* key, const json& value) {
    json definition = TestTokenizerJson();
    definition[key] = value;
    return std::string(Tokenizer::LoadFromJson(definition.dump()).status().message());
  };
  const auto split_error = [&](const char* key, const json& value) {
    json broken = split;
    broken[key] = value;
    const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
    return error("pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {broken, byte_level}}});
  };
  EXPECT_EQ(split_error("invert", false), "");
  EXPECT_THAT(split_error("behavior", "Joined"), HasSubstr("pretokenizers[0].behavior"));
  EXPECT_THAT(split_error("invert", 1), HasSubstr("pretokenizers[0].invert"));
  EXPECT_THAT(split_error("pattern", {{"Glob", " "}}), HasSubstr("pretokenizers[0].pattern"));
  EXPECT_THAT(split_error("pattern", {{"String", ""}}), HasSubstr("pattern.String"));
  EXPECT_THAT(split_error("pattern", {{"Regex", "\\w+"}}), HasSubstr("\"\\w\" at byte 0"));
  EXPECT_THAT(split_error("pattern", {{"Regex", "(a"}}), HasSubstr("pre_tokenizer: regular"));
  EXPECT_THAT(error("pre_tokenizer", split), HasSubstr("decoder.type"));

  const json text = {{"Sequence", {{"id", "A"}}}};
  const json begin = {{"SpecialToken", {{"id", "<s>"}}}};
  const auto template_error = [&](const json& single, const json& ids) {
    return error("post_processor", {{"type", "TemplateProcessing"},
                                    {"single", single},
                                    {"special_tokens", {{"<s>", {{"ids", ids}}}}}});
  };
  EXPECT_EQ(template_error({begin, text}, {0}), "");
  EXPECT_THAT(template_error({begin}, {0}), HasSubstr("post_processor.single"));
  EXPECT_THAT(template_error({text, text}, {0}), HasSubstr("post_processor.single[1]"));
  EXPECT_THAT(template_error({begin, text}, {-5}), HasSubstr("special_tokens.<s>.ids[0]"));
  EXPECT_THAT(template_error({begin, text}, {99999}), HasSubstr("id 99999, which no token has"));
}

TEST(BrokenFilesTest, RefusesWhatIsNotJson) {
  for (const std::string text : {"", "{", "{\"model\": nul}", "\xFF", "[[[[[[[["}) {
    EXPECT_EQ(Tokenizer::LoadFromJson(text).status().code(), kMalformed) << text;
  }
}

// Whatever a file says, loading ends in a status, and what loads works.
TEST(BrokenFilesTest, SurvivesDamagedFiles) {
  Random random(3);
  const std::string good = TestTokenizerJson().dump();
  int loaded = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = good;
    for (uint64_t i = 1 + random.Below(3); i > 0; --i) {
      const size_t at = random.Below(damaged.size());
      switch (random.Below(4)) {
        case 0:
          damaged[at] = static_cast<char>(random.Below(256));
          break;
        case 1:
          damaged.erase(at, 1 + random.Below(40));
          break;
        case 2:
          damaged.insert(at, damaged.substr(random.Below(damaged.size()), random.Below(60)));
          break;
        default:
          damaged[at] = damaged[random.Below(damaged.size())];
      }
    }
    const auto tokenizer = Tokenizer::LoadFromJson(damaged);
    if (!tokenizer.ok()) continue;
    ++loaded;
    const auto ids = (*tokenizer)->Encode("hello <|im_end|> \u00E9", false, true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_TRUE((*tokenizer)->Decode(*ids, false).ok());
  }
  EXPECT_GT(loaded, 0);
  EXPECT_LT(loaded, 2000);
}

TEST(BrokenFilesTest, TiktokenFilesAreRefusedByLine) {
  const auto error = [](std::string_view file, std::string_view config = "") {
    return std::string(ParseTiktoken(file, config).status().message());
  };
  EXPECT_EQ(error("YQ== 0\nYg== 1\r\n\nYWI= 2\n"), "");
  EXPECT_EQ(error("YQ== 0\nb! 1\n"), "line 2: expected a token in base64 and its rank");
  EXPECT_THAT(error("YQ==\n"), HasSubstr("line 1"));
  EXPECT_THAT(error("YQ== -1\n"), HasSubstr("line 1"));
  EXPECT_THAT(error("YQ== 99999999\n"), HasSubstr("line 1"));
  EXPECT_EQ(error("YQ== 0\nYQ== 1\n"), "line 2: this token stands there twice");
  EXPECT_EQ(error("YQ== 0\nYg== 0\n"), "two tokens have the rank 0");
  EXPECT_THAT(error("YQ== 0\n", R"({"added_tokens_decoder": {"x": {"content": "a"}}})"),
              HasSubstr("tokenizer_config.json: added_tokens_decoder.x"));
  EXPECT_THAT(error("YQ== 0\n", R"({"added_tokens_decoder": {"0": {"content": "b"}}})"),
              HasSubstr("is another token's"));
}

}  // namespace
}  // namespace baton
