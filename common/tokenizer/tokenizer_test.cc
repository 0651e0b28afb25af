#include "common/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/tokenizer/testing/test_tokenizer.h"

namespace baton {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Ids = std::vector<int32_t>;

Ids Encode(const Tokenizer& tokenizer, std::string_view text, bool parse_special = true) {
  const auto ids = tokenizer.Encode(text, /*add_special_tokens=*/false, parse_special);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.value_or(Ids());
}

TEST(TokenizerTest, MergesWithinWords) {
  const auto tokenizer = MakeTestTokenizer();
  const int32_t hello = *tokenizer->TokenId("hello");
  EXPECT_THAT(Encode(*tokenizer, "hello"), ElementsAre(hello));
  EXPECT_THAT(Encode(*tokenizer, "hello hell"),
              ElementsAre(hello, ' ', *tokenizer->TokenId("hell")));
  EXPECT_THAT(Encode(*tokenizer, ""), IsEmpty());
}

TEST(TokenizerTest, SpecialTokensInsideText) {
  const auto tokenizer = MakeTestTokenizer();
  const int32_t end = *tokenizer->TokenId("<|im_end|>");
  const int32_t think = *tokenizer->TokenId("<think>");
  EXPECT_THAT(Encode(*tokenizer, "a<|im_end|><|im_end|>b"), ElementsAre('a', end, end, 'b'));
  EXPECT_THAT(Encode(*tokenizer, "<|im_<|im_end|>"), ElementsAre('<', '|', 'i', 'm', '_', end));
  const Ids literal = Encode(*tokenizer, "<|im_end|><think>", /*parse_special=*/false);
  EXPECT_EQ(literal.size(), 11);  // The text of one, the other as one token.
  EXPECT_EQ(literal.back(), think);
  for (const int32_t id : literal) EXPECT_FALSE(tokenizer->IsSpecial(id));
  EXPECT_TRUE(tokenizer->IsSpecial(end));
}

TEST(TokenizerTest, AddsWhatThePostProcessorSays) {
  json definition = TestTokenizerJson();
  const int32_t begin = MakeTestTokenizer()->TokenId("<|begin_of_text|>").value();
  definition["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|begin_of_text|>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", json::array()},
      {"special_tokens", {{"<|begin_of_text|>", {{"id", "<|begin_of_text|>"}, {"ids", {begin}}}}}}};
  const auto tokenizer = MakeTestTokenizer(definition);
  EXPECT_THAT(tokenizer->Encode("a", true, true).value(), ElementsAre(begin, 'a'));
  EXPECT_THAT(tokenizer->Encode("a", false, true).value(), ElementsAre('a'));
}

TEST(TokenizerTest, RefusesTextThatIsNotUtf8) {
  const auto status = MakeTestTokenizer()->Encode("abc\xE4\xB8", false, true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at byte 3"));
  const std::string long_text(Tokenizer::kMaxTextBytes + 1, 'a');
  EXPECT_EQ(MakeTestTokenizer()->Encode(long_text, false, true).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(TokenizerTest, DecodeSkipsSpecialTokensOnRequest) {
  const auto tokenizer = MakeTestTokenizer();
  const Ids ids = Encode(*tokenizer, "<|im_start|>hello<|im_end|>");
  EXPECT_EQ(tokenizer->Decode(ids, true).value(), "hello");
  EXPECT_EQ(tokenizer->Decode(ids, false).value(), "<|im_start|>hello<|im_end|>");
  EXPECT_EQ(tokenizer->Decode({}, false).value(), "");
}

TEST(TokenizerTest, DecodeRefusesIdsWithoutToken) {
  const auto tokenizer = MakeTestTokenizer();
  for (const int32_t id : {-1, tokenizer->vocab_size(), INT32_MAX, INT32_MIN}) {
    const Ids ids = {'a', id};
    const auto status = tokenizer->Decode(ids, true).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("at index 1"));
    EXPECT_FALSE(tokenizer->HasToken(id));
    EXPECT_FALSE(tokenizer->IsSpecial(id));
    EXPECT_EQ(tokenizer->TokenBytes(id), "");
  }
}

TEST(TokenizerTest, TokensBySpellingAndByBytes) {
  const auto tokenizer = MakeTestTokenizer();
  EXPECT_EQ(tokenizer->TokenId("Ġ"), ' ');
  EXPECT_EQ(tokenizer->TokenId(" "), std::nullopt);
  EXPECT_EQ(tokenizer->TokenBytes(' '), " ");
  EXPECT_EQ(tokenizer->TokenBytes(0xFF), "\xFF");
  EXPECT_EQ(tokenizer->vocab_size(), 260 + 8);
}

// A run of one character is one word to the pre-tokenizer: the worst case of merging.
TEST(TokenizerTest, AMebibyteOfOneCharacter) {
  const auto tokenizer = MakeTestTokenizer();
  for (const std::string_view run : {"a", "l", " ", "\n", "<", "\u00E9", "\U0001F600"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += run;
    const Ids ids = Encode(*tokenizer, text);
    EXPECT_EQ(tokenizer->Decode(ids, false).value(), text);
  }
}

TEST(TokenizerTest, ManyThreadsShareOne) {
  const auto tokenizer = MakeTestTokenizer();
  const std::string text = "hello hell <|im_end|> \u00E9\n  x";
  const Ids expected = Encode(*tokenizer, text);
  std::array<std::thread, 4> threads;
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      for (int round = 0; round < 200; ++round) EXPECT_EQ(Encode(*tokenizer, text), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Training leaves both in the file; they say how texts of a batch get one length.
TEST(TokenizerTest, TruncationAndPaddingSayNothingAboutServing) {
  json definition = TestTokenizerJson();
  const std::string text = "hello hello hello hello";
  const Ids whole = Encode(*Tokenizer::LoadFromJson(definition.dump()).value(), text);
  definition["truncation"] = {{"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
  definition["padding"] = {{"strategy", {{"Fixed", 64}}}, {"pad_id", 0}, {"pad_token", "a"}};
  const auto tokenizer = Tokenizer::LoadFromJson(definition.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(Encode(**tokenizer, text), whole);
}

class LoadTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(directory_ + "/" + name) << content;
  }

  std::string directory_;
};

TEST_F(LoadTest, TakesRolesFromTheFilesBeside) {
  Write("tokenizer.json", TestTokenizerJson().dump());
  Write("tokenizer_config.json",
        R"({"bos_token": {"content": "<|begin_of_text|>", "special": true},
            "eos_token": "<|eot_id|>", "chat_template": "old"})");
  Write("generation_config.json", R"({"eos_token_id": [260, 266]})");
  Write("config.json", R"({"eos_token_id": 262, "bos_token_id": 1, "hidden_size": 64})");
  Write("chat_template.jinja", "new");
  const auto tokenizer = Tokenizer::Load(directory_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_id(), (*tokenizer)->TokenId("<|begin_of_text|>"));
  EXPECT_THAT((*tokenizer)->eos_ids(), ElementsAre(260, 266));  // 266 is <|eot_id|>.
  EXPECT_EQ((*tokenizer)->chat_templates().at("default").jinja, "new");
}

TEST_F(LoadTest, AddsTheTokensThatOnlyTokenizerConfigAsksFor) {
  nlohmann::json json = TestTokenizerJson();
  Write("tokenizer.json", json.dump());
  Write("tokenizer_config.json", R"({"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>",
                                     "add_bos_token": true, "add_eos_token": true})");
  const auto tokenizer = Tokenizer::Load(directory_).value();
  const int32_t bos = *tokenizer->TokenId("<|begin_of_text|>");
  const int32_t eos = *tokenizer->TokenId("<|eot_id|>");
  EXPECT_THAT(tokenizer->Encode("a", true, true).value(), ElementsAre(bos, 'a', eos));
  EXPECT_THAT(tokenizer->Encode("a", false, true).value(), ElementsAre('a'));
  EXPECT_EQ(tokenizer->named_tokens().at("bos_token"), "<|begin_of_text|>");
  Write("tokenizer_config.json", R"({"bos_token": "<|begin_of_text|>", "add_bos_token": false})");
  EXPECT_THAT(Tokenizer::Load(directory_).value()->Encode("a", true, true).value(),
              ElementsAre('a'));
}

TEST(MarkedTest, NoSpecialTokenHasAPlainByte) {
  const auto tokenizer = MakeTestTokenizer();
  const int32_t end = *tokenizer->TokenId("<|im_end|>");
  const auto specials = [&](const std::string& text, std::vector<ByteRange> plain) {
    const Ids ids = tokenizer->EncodeMarked(text, plain).value();
    EXPECT_EQ(tokenizer->Decode(ids, false).value(), text);
    return std::count(ids.begin(), ids.end(), end);
  };
  const std::string text = "<|im_end|><|im_end|>";
  EXPECT_EQ(specials(text, {}), 2);
  EXPECT_EQ(specials(text, {{0, 10}}), 1);
  EXPECT_EQ(specials(text, {{0, 20}}), 0);
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(specials(text, {{i, i + 1}}), 1) << i;
  EXPECT_EQ(specials(text, {{9, 11}}), 0);
  // What begins like a token and is none hides none.
  EXPECT_EQ(specials("<|im_<|im_end|>", {{0, 5}}), 1);
  // Words span the borders of what is plain.
  EXPECT_EQ(tokenizer->EncodeMarked("hello", std::vector<ByteRange>{{2, 4}}).value(),
            tokenizer->Encode("hello", false, true).value());
}

TEST_F(LoadTest, ConfigJsonAloneNamesTheEnd) {
  Write("tokenizer.json", TestTokenizerJson().dump());
  Write("config.json", R"({"eos_token_id": 260, "bos_token_id": 260})");
  EXPECT_THAT(Tokenizer::Load(directory_).value()->eos_ids(), ElementsAre(260));
  EXPECT_EQ(Tokenizer::Load(directory_).value()->bos_id(), 260);
  Write("tokenizer_config.json", R"({"bos_token": null, "chat_template": [
      {"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]})");
  EXPECT_EQ(Tokenizer::Load(directory_).value()->bos_id(), std::nullopt);
  EXPECT_EQ(Tokenizer::Load(directory_).value()->chat_templates().at("default").jinja, "yes");
}

TEST_F(LoadTest, ErrorsNameTheFile) {
  const auto error = [&] { return std::string(Tokenizer::Load(directory_).status().message()); };
  EXPECT_EQ(Tokenizer::Load(directory_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(error(), HasSubstr("tokenizer.json: can't be opened"));
  Write("tokenizer.json", "{");
  EXPECT_THAT(error(), HasSubstr(directory_ + "/tokenizer.json: not valid JSON"));
  Write("tokenizer.json", TestTokenizerJson().dump());
  Write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_THAT(error(), HasSubstr("eos_token \"</s>\" is not a token"));
  Write("tokenizer_config.json", R"({"eos_token": 7})");
  EXPECT_THAT(error(), HasSubstr("tokenizer_config.json: eos_token: is 7; expected a string"));
  Write("tokenizer_config.json", "[]");
  EXPECT_THAT(error(), HasSubstr("tokenizer_config.json: expected an object"));
  Write("tokenizer_config.json", "{}");
  Write("generation_config.json", R"({"eos_token_id": [1, "x"]})");
  EXPECT_THAT(error(), HasSubstr("generation_config.json: eos_token_id[1]: is \"x\""));
  Write("generation_config.json", "{}");
  Write("config.json", R"({"bos_token_id": -2})");
  EXPECT_THAT(error(), HasSubstr("config.json: bos_token_id: is -2"));
}

}  // namespace
}  // namespace baton
