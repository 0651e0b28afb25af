#include "common/tokenizer/chat/output/output_format.h"

#include <gtest/gtest.h>

#include <utility>

namespace baton::chat {
namespace {

TEST(OutputFormatTest, ToolFormatsAreChosenByTheTemplate) {
  const std::pair<const char*, ToolFormat> cases[] = {
      {"{{ '<tool_call>' }}", ToolFormat::kHermes},
      {"{{ '<tool_call>\\n<function=' }}", ToolFormat::kNone},
      {"{{ '<tool_call>\\n<function=' }}<parameter=", ToolFormat::kQwenCoder},
      {"<tool_call>{{ name }}<arg_key>", ToolFormat::kGlm},
      {"{{ '<|python_tag|>' }}", ToolFormat::kLlama3},
      {"<|python_tag|> [func_name1(params_name1=1)]", ToolFormat::kPythonic},
      {"[TOOL_CALLS]", ToolFormat::kMistral},
      {"<｜tool▁calls▁begin｜>", ToolFormat::kDeepSeekV3},
      {"<|tool_calls_section_begin|>", ToolFormat::kKimi},
      {"{{ message.content }}", ToolFormat::kNone},
  };
  for (const auto& [text, format] : cases) {
    EXPECT_EQ(ToolFormatFor("auto", text).value(), format) << text;
  }
}

TEST(OutputFormatTest, ReasoningFormatsAreChosenByTheTemplate) {
  EXPECT_EQ(ReasoningFormatFor("auto", "x</think>").value(), ReasoningFormat::kThink);
  EXPECT_EQ(ReasoningFormatFor("auto", "◁think▷").value(), ReasoningFormat::kKimi);
  EXPECT_EQ(ReasoningFormatFor("auto", "[THINK]").value(), ReasoningFormat::kMistral);
  EXPECT_EQ(ReasoningFormatFor("auto", "think").value(), ReasoningFormat::kNone);
}

TEST(OutputFormatTest, AliasesAreTakenAndNamesShown) {
  const std::pair<const char*, const char*> aliases[] = {
      {"qwen25", "hermes"},
      {"llama3_json", "llama3"},
      {"deepseekv3", "deepseek-v3"},
      {"kimi_k2", "kimi"},
      {"llama4_pythonic", "pythonic"},
      {"glm45", "glm"},
      {"none", "none"},
      {"mistral", "mistral"},
      {"json", "json"},
      {"qwen3_coder", "qwen3-coder"},
  };
  for (const auto& [alias, name] : aliases) {
    EXPECT_EQ(NameOf(ToolFormatFor(alias, "").value()), name);
  }
  EXPECT_EQ(NameOf(ReasoningFormatFor("deepseek_r1", "").value()), "deepseek-r1");
  EXPECT_EQ(ReasoningFormatFor("kimi_k2", "").value(), ReasoningFormat::kThink);
  const auto unknown = ToolFormatFor("some", "<tool_call>");
  EXPECT_TRUE(absl::IsInvalidArgument(unknown.status()));
  EXPECT_NE(unknown.status().message().find("hermes"), std::string::npos) << unknown.status();
  EXPECT_TRUE(absl::IsInvalidArgument(ReasoningFormatFor("hermes", "").status()));
}

TEST(OutputFormatTest, NoMarkBeginsAnother) {
  for (int tools = 0; tools <= static_cast<int>(ToolFormat::kJson); ++tools) {
    for (int reasoning = 0; reasoning <= static_cast<int>(ReasoningFormat::kMistral); ++reasoning) {
      const auto marks =
          AllMarks(static_cast<ToolFormat>(tools), static_cast<ReasoningFormat>(reasoning));
      for (const std::string& a : marks) {
        for (const std::string& b : marks) {
          EXPECT_TRUE(&a == &b || b.find(a) == std::string::npos) << a << " " << b;
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::chat
