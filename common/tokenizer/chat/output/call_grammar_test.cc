#include "common/tokenizer/chat/output/call_grammar.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/grammar/match_text.h"
#include "common/tokenizer/chat/output/testing/parsed_answer.h"

namespace baton::chat {
namespace {

const std::vector<CallableTool> kTools = {
    {"get",
     R"({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})"},
    {"now", R"({"type": "object", "additionalProperties": false, "properties": {}})"}};

// What a model may write, and the parser reads.
const std::pair<ToolFormat, std::string> kCalls[] = {
    {ToolFormat::kHermes,
     "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Ulm\"}}\n"
     "</tool_call>"},
    {ToolFormat::kLlama3, R"({"name": "get", "parameters": {"city": "Ulm"}})"},
    {ToolFormat::kJson, R"({"name": "get", "arguments": {"city": "Ulm"}})"},
    {ToolFormat::kMistral, R"([TOOL_CALLS][{"name": "get", "arguments": {"city": "Ulm"}}])"},
    {ToolFormat::kDeepSeekV3,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n"
     "{\"city\": \"Ulm\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {ToolFormat::kKimi,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>"
     "{\"city\": \"Ulm\"}<|tool_call_end|><|tool_calls_section_end|>"},
};

TEST(CallGrammarTest, WhatIsForcedIsReadAsACall) {
  for (const auto& [format, text] : kCalls) {
    const auto grammar = CallGrammar(format, kTools, {});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    const grammar::Matcher matcher(grammar::Ebnf(*grammar));
    ASSERT_EQ(matcher.error(), "");
    EXPECT_TRUE(matcher.Matches(text)) << text;
    EXPECT_FALSE(matcher.Matches("")) << text;
    EXPECT_FALSE(matcher.Begins("Hello"));
    const Json parsed = Parse(AllSpecial(With(format)), text);
    EXPECT_EQ(parsed["calls"].size(), 1u) << parsed;
    EXPECT_EQ(parsed["malformed"], 0);
  }
}

TEST(CallGrammarTest, TextMayStandAroundCallsThatAreNotForced) {
  for (const auto& [format, text] : kCalls) {
    const auto grammar = CallGrammar(format, kTools, {.forced = false});
    if (format == ToolFormat::kLlama3 || format == ToolFormat::kJson) {
      EXPECT_TRUE(absl::IsUnimplemented(grammar.status()));
      continue;
    }
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    const grammar::Matcher matcher(grammar::Ebnf(*grammar));
    ASSERT_EQ(matcher.error(), "");
    EXPECT_TRUE(matcher.Matches("No call."));
    EXPECT_TRUE(matcher.Matches("So: " + text)) << text;
    EXPECT_TRUE(matcher.Matches(absl::StrCat("So: ", text, " and ", text))) << text;
    EXPECT_FALSE(matcher.Matches(std::string(MarksOf(format).begin[0]) + "x")) << text;
  }
}

TEST(CallGrammarTest, SeveralWhereTheyMayBeParallel) {
  const std::string call = kCalls[0].second;
  const auto matches = [&](CallDemand demand) {
    return grammar::Matches(grammar::Ebnf(CallGrammar(ToolFormat::kHermes, kTools, demand).value()),
                            call + "\n" + call);
  };
  EXPECT_TRUE(matches({.parallel = true}));
  EXPECT_FALSE(matches({.parallel = false}));
}

TEST(CallGrammarTest, FormatsThatAreNotJson) {
  for (const ToolFormat format :
       {ToolFormat::kNone, ToolFormat::kPythonic, ToolFormat::kGlm, ToolFormat::kQwenCoder}) {
    EXPECT_TRUE(absl::IsUnimplemented(CallGrammar(format, kTools, {}).status()));
  }
}

}  // namespace
}  // namespace baton::chat
