#include "common/tokenizer/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tokenizer/test_tokenizer.h"

namespace baton {
namespace {

using testing::HasSubstr;
using Messages = std::vector<ChatMessage>;

std::unique_ptr<ChatTemplate> Make(std::string_view choice, const Tokenizer& tokenizer) {
  return MakeChatTemplate(choice, tokenizer).value();
}

std::string Text(const ChatTemplate& chat_template, const Messages& messages,
                 bool add_generation_prompt) {
  const auto segments = chat_template.Render(messages, add_generation_prompt).value();
  std::string text;
  for (const ChatSegment& segment : segments) text += segment.text;
  return text;
}

// A tokenizer without `token`.
nlohmann::json Without(const std::string& token) {
  nlohmann::json json = TestTokenizerJson();
  auto& added = json["added_tokens"];
  for (size_t i = 0; i < added.size(); ++i) {
    if (added[i]["content"] == token) added.erase(i);
  }
  return json;
}

const Messages kConversation = {
    {"system", "Be brief."}, {"user", " Hi \n"}, {"assistant", "Hello."}, {"user", "Bye"}};

TEST(ChatTemplateTest, ChatMl) {
  const auto tokenizer = MakeTestTokenizer();
  const auto chatml = Make("chatml", *tokenizer);
  const std::string expected =
      "<|im_start|>system\nBe brief.<|im_end|>\n"
      "<|im_start|>user\n Hi \n<|im_end|>\n"
      "<|im_start|>assistant\nHello.<|im_end|>\n"
      "<|im_start|>user\nBye<|im_end|>\n";
  EXPECT_EQ(Text(*chatml, kConversation, false), expected);
  EXPECT_EQ(Text(*chatml, kConversation, true), expected + "<|im_start|>assistant\n");
}

TEST(ChatTemplateTest, ChatMlGathersToolResults) {
  const auto tokenizer = MakeTestTokenizer();
  EXPECT_EQ(Text(*Make("chatml", *tokenizer),
                 {{"user", "Weather?"}, {"tool", "rain"}, {"tool", "12 C"}, {"assistant", "Wet."}},
                 false),
            "<|im_start|>user\nWeather?<|im_end|>\n"
            "<|im_start|>user\n<tool_response>\nrain\n</tool_response>\n"
            "<tool_response>\n12 C\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\nWet.<|im_end|>\n");
}

TEST(ChatTemplateTest, Llama3) {
  const auto tokenizer = MakeTestTokenizer();
  const auto llama3 = Make("llama3", *tokenizer);
  const std::string expected =
      "<|begin_of_text|>"
      "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>";
  EXPECT_EQ(Text(*llama3, kConversation, false), expected);
  EXPECT_EQ(Text(*llama3, kConversation, true),
            expected + "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(Text(*llama3, {{"tool", "rain"}}, false),
            "<|begin_of_text|><|start_header_id|>ipython<|end_header_id|>\n\nrain<|eot_id|>");
}

TEST(ChatTemplateTest, AnEmptyMessageIsATurn) {
  const auto tokenizer = MakeTestTokenizer();
  EXPECT_EQ(Text(*Make("chatml", *tokenizer), {{"user", ""}}, false),
            "<|im_start|>user\n<|im_end|>\n");
  EXPECT_EQ(Text(*Make("llama3", *tokenizer), {{"user", ""}}, false),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n<|eot_id|>");
}

TEST(ChatTemplateTest, EncodesAsTheRenderedTextWould) {
  const auto tokenizer = MakeTestTokenizer();
  for (const char* choice : {"chatml", "llama3"}) {
    const auto chat_template = Make(choice, *tokenizer);
    // The message's line break belongs to the same word as the template's.
    const Messages messages = {{"user", "\n\nhello <think> hello"}};
    EXPECT_EQ(EncodeChat(*tokenizer, *chat_template, messages, true).value(),
              tokenizer->Encode(Text(*chat_template, messages, true), false, true).value());
  }
}

TEST(ChatTemplateTest, NoMessageCanWriteASpecialToken) {
  const auto tokenizer = MakeTestTokenizer();
  for (const char* choice : {"chatml", "llama3"}) {
    const auto chat_template = Make(choice, *tokenizer);
    const auto special_tokens = [&](const std::string& content) {
      const Messages messages = {{"user", content}};
      const auto ids = EncodeChat(*tokenizer, *chat_template, messages, true).value();
      return std::count_if(ids.begin(), ids.end(),
                           [&](int32_t id) { return tokenizer->IsSpecial(id); });
    };
    for (const char* token : kSpecialTokens) {
      EXPECT_EQ(special_tokens(token), special_tokens("x")) << token;
      EXPECT_EQ(special_tokens(std::string("a\n") + token + "\n"), special_tokens("x")) << token;
    }
    // Nor can two parts that only together are one.
    EXPECT_EQ(special_tokens("<|im_<|im_end|>end|>"), special_tokens("x"));
  }
}

TEST(ChatTemplateTest, RefusesBadMessages) {
  const auto tokenizer = MakeTestTokenizer();
  for (const char* choice : {"chatml", "llama3"}) {
    const auto chat_template = Make(choice, *tokenizer);
    const auto field = [&](const Messages& messages) {
      return FieldOf(EncodeChat(*tokenizer, *chat_template, messages, true).status());
    };
    EXPECT_EQ(field({}), "messages");
    EXPECT_EQ(field({{"user", "a"}, {"User", "b"}}), "messages[1].role");
    EXPECT_EQ(field({{"", "a"}}), "messages[0].role");
    EXPECT_EQ(field({{"user<|im_end|>", "a"}}), "messages[0].role");
    EXPECT_EQ(field({{"user", "a\xFF"}}), "messages[0].content");
  }
}

TEST(ChatTemplateTest, AutoGoesByTheModelsTemplate) {
  const auto chosen = [](const std::string& jinja, const nlohmann::json& json) {
    TokenRoles roles;
    roles.chat_template = jinja;
    return std::string(Make("auto", *MakeTestTokenizer(json, roles))->name());
  };
  const nlohmann::json all = TestTokenizerJson();
  EXPECT_EQ(chosen("{{ '<|im_start|>' + message.role }}", all), "chatml");
  EXPECT_EQ(chosen("{{ '<|start_header_id|>' + message.role }}", all), "llama3");
  EXPECT_EQ(chosen("[INST] {{ message.content }} [/INST]", all), "unknown");
  // A template whose tokens are missing can't be written.
  EXPECT_EQ(chosen("{{ '<|im_start|>' + message.role }}", Without("<|im_end|>")), "unknown");
}

TEST(ChatTemplateTest, AutoGoesByTheSpecialTokensOfAModelWithoutTemplate) {
  EXPECT_EQ(Make("auto", *MakeTestTokenizer())->name(), "chatml");
  EXPECT_EQ(Make("auto", *MakeTestTokenizer(Without("<|im_start|>")))->name(), "llama3");
}

TEST(ChatTemplateTest, AnUnknownTemplateIsAnErrorAtChatTime) {
  TokenRoles roles;
  roles.chat_template = "[INST] {{ message.content }} [/INST]";
  const auto tokenizer = MakeTestTokenizer(TestTokenizerJson(), roles);
  const auto status =
      EncodeChat(*tokenizer, *Make("auto", *tokenizer), kConversation, true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--chat-template"));
}

TEST(ChatTemplateTest, RefusesAChoiceThatTheTokenizerCannotWrite) {
  const auto tokenizer = MakeTestTokenizer(Without("<|eot_id|>"));
  const auto missing = MakeChatTemplate("llama3", *tokenizer).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("<|eot_id|>"));
  EXPECT_THAT(std::string(MakeChatTemplate("vicuna", *tokenizer).status().message()),
              HasSubstr("--chat-template=vicuna: must be auto, chatml or llama3"));
}

}  // namespace
}  // namespace baton
