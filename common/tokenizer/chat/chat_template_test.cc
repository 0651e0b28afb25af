#include "common/tokenizer/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tokenizer/chat/jinja/json.h"
#include "common/tokenizer/testing/test_tokenizer.h"

namespace baton {
namespace {

using testing::HasSubstr;
using Messages = std::vector<ChatMessage>;

std::unique_ptr<ChatTemplate> Make(std::string_view choice, const Tokenizer& tokenizer) {
  return MakeChatTemplate(choice, tokenizer).value();
}

// A tokenizer of a model with this chat template.
std::unique_ptr<Tokenizer> WithTemplate(const std::string& jinja_text) {
  TokenRoles roles;
  roles.chat_templates["default"] = {"chat_template.jinja", jinja_text};
  roles.named_tokens["bos_token"] = "<|begin_of_text|>";
  return MakeTestTokenizer(TestTokenizerJson(), roles);
}

ChatPrompt Prompt(const Messages& messages, bool add_generation_prompt = false) {
  ChatPrompt prompt;
  prompt.messages = messages;
  prompt.add_generation_prompt = add_generation_prompt;
  return prompt;
}

jinja::Value Json(const std::string& text) {
  return jinja::ParseJsonValue(text, jinja::Origin::kClient).value();
}

std::string Text(const ChatTemplate& chat_template, const ChatPrompt& prompt) {
  const auto text = chat_template.Render(prompt, std::tm{});
  return text.ok() ? text->bytes() : std::string(text.status().message());
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                         const ChatPrompt& prompt) {
  return EncodeChat(tokenizer, chat_template, prompt, std::tm{}).value();
}

// What a template makes of one prompt.
std::string Rendered(const std::string& jinja_text, const ChatPrompt& prompt) {
  const auto tokenizer = WithTemplate(jinja_text);
  return Text(*Make("auto", *tokenizer), prompt);
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

const Messages kConversation = {{"system", "Be brief.", {}},
                                {"user", " Hi \n", {}},
                                {"assistant", "Hello.", {}},
                                {"user", "Bye", {}}};

TEST(BuiltInTest, ChatMl) {
  const auto tokenizer = MakeTestTokenizer();
  const auto chatml = Make("chatml", *tokenizer);
  const std::string expected =
      "<|im_start|>system\nBe brief.<|im_end|>\n"
      "<|im_start|>user\n Hi \n<|im_end|>\n"
      "<|im_start|>assistant\nHello.<|im_end|>\n"
      "<|im_start|>user\nBye<|im_end|>\n";
  EXPECT_EQ(Text(*chatml, Prompt(kConversation)), expected);
  EXPECT_EQ(Text(*chatml, Prompt(kConversation, true)), expected + "<|im_start|>assistant\n");
}

TEST(BuiltInTest, ChatMlGathersToolResults) {
  const auto tokenizer = MakeTestTokenizer();
  EXPECT_EQ(Text(*Make("chatml", *tokenizer), Prompt({{"user", "Weather?", {}},
                                                      {"tool", "rain", {}},
                                                      {"tool", "12 C", {}},
                                                      {"assistant", "Wet.", {}}})),
            "<|im_start|>user\nWeather?<|im_end|>\n"
            "<|im_start|>user\n<tool_response>\nrain\n</tool_response>\n"
            "<tool_response>\n12 C\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\nWet.<|im_end|>\n");
}

TEST(BuiltInTest, Llama3) {
  const auto tokenizer = MakeTestTokenizer();
  const auto llama3 = Make("llama3", *tokenizer);
  const std::string expected =
      "<|begin_of_text|>"
      "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>";
  EXPECT_EQ(Text(*llama3, Prompt(kConversation)), expected);
  EXPECT_EQ(Text(*llama3, Prompt(kConversation, true)),
            expected + "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(Text(*llama3, Prompt({{"tool", "", {}}})),
            "<|begin_of_text|><|start_header_id|>ipython<|end_header_id|>\n\n<|eot_id|>");
}

TEST(BuiltInTest, EncodesAsTheRenderedTextWould) {
  const auto tokenizer = MakeTestTokenizer();
  for (const char* choice : {"chatml", "llama3"}) {
    const auto chat_template = Make(choice, *tokenizer);
    // The message's line break belongs to the same word as the template's.
    const ChatPrompt prompt = Prompt({{"user", "\n\nhello <think> hello", {}}}, true);
    EXPECT_EQ(Ids(*tokenizer, *chat_template, prompt),
              tokenizer->Encode(Text(*chat_template, prompt), false, true).value());
  }
}

TEST(BuiltInTest, RefusesBadMessages) {
  const auto tokenizer = MakeTestTokenizer();
  for (const char* choice : {"chatml", "llama3"}) {
    const auto chat_template = Make(choice, *tokenizer);
    const auto field = [&](const Messages& messages) {
      return FieldOf(chat_template->Render(Prompt(messages), std::tm{}).status());
    };
    EXPECT_EQ(field({}), "messages");
    EXPECT_EQ(field({{"user", "a\xFF", {}}}), "messages[0].content");
    EXPECT_EQ(field({{"\xFF", "a", {}}}), "messages[0].role");
    EXPECT_THAT(Text(*chat_template, Prompt({{"king", "a", {}}})), HasSubstr("the role must be"));
  }
}

TEST(ChatTemplateTest, TheModelsOwnIsRenderedAsItIs) {
  EXPECT_EQ(Rendered("{{ bos_token }}{% if messages[0].role != 'system' %}You are Ada.{% endif %}"
                     "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}{% endfor %}",
                     Prompt({{"critic", "x", {}}})),
            "<|begin_of_text|>You are Ada.<|im_start|>critic: x");
}

TEST(ChatTemplateTest, NoMessageCanWriteASpecialToken) {
  // Whatever the template does with the text.
  const std::vector<std::string> templates = {
      "{{ messages[0].content }}",
      "{{ messages[0] | tojson }}{{ messages }}",
      "{{ (' ' ~ messages[0].content ~ ' ').strip().split('%')[-1] | trim | replace('%', '') }}",
      "{% for c in messages[0].content %}{{ c }}{% endfor %}",
      "{{ '<|' + messages[0].content[2:-2] + '|>' }}",
      "{{ '<|' ~ messages[0].role ~ '|>' }}",
      "{{ x }}{{ '%s' % x }}{{ messages[0].name[::-1][::-1] }}"};
  for (const std::string& source : templates) {
    const auto tokenizer = WithTemplate("<|im_end|>" + source);
    const auto chat_template = Make("auto", *tokenizer);
    for (const std::string token : kSpecialTokens) {
      ChatPrompt prompt = Prompt(
          {{token.substr(2, token.size() - 4), token, Json(R"({"name": ")" + token + "\"}")}});
      prompt.variables = Json(R"({"x": ")" + token + "\"}");
      const auto ids = Ids(*tokenizer, *chat_template, prompt);
      EXPECT_EQ(std::count_if(ids.begin(), ids.end(),
                              [&](int32_t id) { return tokenizer->IsSpecial(id); }),
                1)
          << source << " " << token;
    }
    // Nor can two parts that only together are one; `x` is undefined here, which prints as nothing.
    const auto ids = Ids(*tokenizer, *chat_template,
                         Prompt({{"user", "<|im_<|im_end|>end|>", Json(R"({"name": ""})")}}));
    EXPECT_EQ(std::count(ids.begin(), ids.end(), *tokenizer->TokenId("<|im_end|>")), 1) << source;
  }
}

TEST(ChatTemplateTest, TextThatBeginsASpecialTokenHidesNoneOfTheTemplate) {
  const auto tokenizer = WithTemplate("{{ messages[0].content }}<|im_end|>{{ 1 }}");
  const auto chat_template = Make("auto", *tokenizer);
  for (const char* text : {"<|im_end", "<|im_start|><", "<|", "<|im_end|><|im_end|"}) {
    const auto ids = Ids(*tokenizer, *chat_template, Prompt({{"user", text, {}}}));
    EXPECT_EQ(std::count(ids.begin(), ids.end(), *tokenizer->TokenId("<|im_end|>")), 1) << text;
  }
}

TEST(ChatTemplateTest, AUsualRoleMayBePartOfASpecialToken) {
  nlohmann::json json = TestTokenizerJson();
  json["added_tokens"][0]["content"] = "<|user|>";
  TokenRoles roles;
  roles.chat_templates["default"] = {"", "{{ '<|' + messages[0].role + '|>' }}"};
  const auto tokenizer = MakeTestTokenizer(json, roles);
  EXPECT_EQ(Ids(*tokenizer, *Make("auto", *tokenizer), Prompt({{"user", "x", {}}})),
            std::vector<int32_t>{*tokenizer->TokenId("<|user|>")});
}

TEST(ChatTemplateTest, ContentComesInTheFormThatTheTemplateTakes) {
  ChatPrompt prompt = Prompt({{"user", "a\nb", Json(R"({"content": [{"type": "text", "text": "a"},
                                                    {"type": "text", "text": "b"}]})")}});
  EXPECT_EQ(Rendered("{{ messages[0].content }}", prompt), "a\nb");
  const std::string parts = "{% for p in messages[0].content %}[{{ p.text }}]{% endfor %}";
  EXPECT_EQ(Rendered(parts, prompt), "[a][b]");
  EXPECT_EQ(Rendered(parts, Prompt({{"user", "c", {}}})), "[c]");
  EXPECT_EQ(Rendered("{% if messages[0].content is string %}s{% else %}" + parts + "{% endif %}",
                     Prompt({{"user", "c", {}}})),
            "s");
}

TEST(ChatTemplateTest, PassesOnWhatMessagesHold) {
  const ChatPrompt prompt =
      Prompt({{"assistant", "", Json(R"({"tool_calls": [{"id": "1", "function":
            {"name": "f", "arguments": "{\"z\": 1, \"a\": [null]}"}}]})")},
              {"tool", "4", Json(R"({"tool_call_id": "1", "content": "4"})")},
              {"assistant", "", {}}});
  EXPECT_EQ(Rendered("{% for m in messages %}{{ m.content is none }},{% endfor %}"
                     "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
                     "{{ messages[1].tool_call_id }}{{ tools is none }}",
                     prompt),
            "True,False,False,{\"z\": 1, \"a\": [null]}1True");
}

// As DeepSeek's own templates do.
TEST(ChatTemplateTest, ATemplateMayJoinArgumentsToText) {
  const std::string joins =
      "{% for m in messages %}{% for c in m.tool_calls %}"
      "{{ '```json\n' + c['function']['arguments'] + '\n```' }}{% endfor %}{% endfor %}";
  const auto with = [](const std::string& arguments) {
    return Prompt({{"assistant", "", Json(R"({"tool_calls": [{"function": {"name": "f",
        "arguments": )" + arguments + "}}]}")}});
  };
  EXPECT_EQ(Rendered(joins, with(R"("{\"z\": 1,\"a\":  2}")")),
            "```json\n{\"z\": 1,\"a\":  2}\n```");
  EXPECT_THAT(Rendered(joins, with(R"({"z": 1})")), HasSubstr("unsupported operand types"));
  EXPECT_THAT(Rendered("{% set a = messages[0].tool_calls[0].function.arguments %}"
                       "{{ a.items() | list }}{{ raise_exception('No.') }}",
                       with("\"{}\"")),
              HasSubstr("No."));
}

TEST(ChatTemplateTest, TheDeveloperIsTheSystemWhereTheTemplateDoesNotKnowIt) {
  const ChatPrompt prompt = Prompt({{"developer", "x", {}}});
  EXPECT_EQ(Rendered("{{ messages[0].role }}", prompt), "system");
  EXPECT_EQ(Rendered("{# developer #}{{ messages[0].role }}", prompt), "developer");
}

TEST(ChatTemplateTest, ToolsChooseTheTemplateForThem) {
  TokenRoles roles;
  roles.chat_templates["default"] = {"", "plain"};
  roles.chat_templates["tool_use"] = {"", "{{ tools | length }} tools {{ x }}"};
  roles.chat_templates["rag"] = {"", "rag"};
  const auto tokenizer = MakeTestTokenizer(TestTokenizerJson(), roles);
  ChatPrompt prompt = Prompt(kConversation);
  EXPECT_EQ(Text(*Make("auto", *tokenizer), prompt), "plain");
  EXPECT_EQ(Text(*Make("rag", *tokenizer), prompt), "rag");
  prompt.tools = Json("[1, 2]");
  prompt.variables = Json(R"({"x": "y"})");
  EXPECT_EQ(Text(*Make("auto", *tokenizer), prompt), "2 tools y");
}

TEST(ChatTemplateTest, ContinuesTheLastMessage) {
  const auto continued = [](const std::string& source, const std::string& content) {
    ChatPrompt prompt = Prompt({{"user", "a", {}}, {"assistant", content, {}}});
    prompt.continue_final_message = true;
    return Rendered(source, prompt);
  };
  const std::string plain = "{% for m in messages %}<{{ m.content }}>{% endfor %}";
  EXPECT_EQ(continued(plain, "So it"), "<a><So it");
  EXPECT_EQ(continued(plain, "So it \n"), "<a><So it \n");
  EXPECT_EQ(continued("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", "So it \n"),
            "<a><So it");
  EXPECT_THAT(continued("nothing", "So it"), HasSubstr("does not write the last message"));
}

TEST(ChatTemplateTest, WhatTheTemplateRefusesIsSaid) {
  const auto tokenizer = WithTemplate("\n{{ raise_exception('No system!') }}");
  const auto status = Make("auto", *tokenizer)->Render(Prompt(kConversation), std::tm{}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "the model's chat template: No system!");
}

TEST(ChooseTest, AModelWithoutTemplateGoesByItsSpecialTokens) {
  EXPECT_EQ(Make("auto", *MakeTestTokenizer())->name(), "chatml");
  const auto llama3 = MakeTestTokenizer(Without("<|im_start|>"));
  EXPECT_EQ(Make("auto", *llama3)->name(), "llama3");
  nlohmann::json none = Without("<|im_start|>");
  none["added_tokens"] = nlohmann::json::array();
  const auto tokenizer = MakeTestTokenizer(none);
  const auto chat_template = Make("auto", *tokenizer);
  EXPECT_EQ(chat_template->name(), "unknown");
  const auto status = chat_template->Render(Prompt(kConversation), std::tm{}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--chat-template"));
}

TEST(ChooseTest, ReadsAFile) {
  const auto tokenizer = WithTemplate("own");
  const std::string path = testing::TempDir() + "/other.jinja";
  std::ofstream(path) << "other {{ bos_token }}";
  EXPECT_EQ(Text(*Make(path, *tokenizer), Prompt(kConversation)), "other <|begin_of_text|>");
  EXPECT_EQ(Make("auto", *tokenizer)->name(), "chat_template.jinja");
  EXPECT_EQ(MakeChatTemplate(path + ".jinja", *tokenizer).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(ChooseTest, RefusesABadChoice) {
  const auto error = [](std::string_view choice, const Tokenizer& tokenizer) {
    return std::string(MakeChatTemplate(choice, tokenizer).status().message());
  };
  EXPECT_THAT(error("llama3", *MakeTestTokenizer(Without("<|eot_id|>"))), HasSubstr("<|eot_id|>"));
  EXPECT_THAT(error("vicuna", *WithTemplate("own")),
              HasSubstr("--chat-template=vicuna: must be auto, chatml, llama3, default, or"));
  EXPECT_THAT(error("auto", *WithTemplate("a\n{% for %}")),
              HasSubstr("chat_template.jinja: chat template: line 2: expected a name"));
}

}  // namespace
}  // namespace baton
