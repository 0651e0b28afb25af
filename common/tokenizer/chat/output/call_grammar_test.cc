#include "common/tokenizer/chat/output/call_grammar.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/grammar/testing/match_text.h"
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

TEST(CallGrammarTest, ArgumentsThatAreNotOneObject) {
  const std::vector<CallableTool> tools = {
      {"put",
       R"({"type": "object", "required": ["text", "n"], "properties": {
            "text": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "n": {"type": ["integer", "boolean", "null"]},
            "unit": {"enum": ["C", "</arg_value>", "</parameter>"]},
            "code": {"type": "string", "pattern": "^[a-z/<]+$"},
            "list": {"type": "array", "items": {"type": "string"}}}})",
       {"text", "unit", "code"}},
      {"any", R"({"type": "object"})"}};
  const Json all = {{"text", "a < \"b\"\n"},
                    {"n", nullptr},
                    {"unit", "C"},
                    {"code", "a/b"},
                    {"list", {"x/y", "\n"}}};
  const std::pair<ToolFormat, std::vector<std::string>> cases[] = {
      {ToolFormat::kPythonic,
       {R"([put(text="a < \"b\"\n", n=None, unit="C", code="a/b", list=["x/y", "\n"])])",
        R"([put(text="", n=True)])", R"([any(x={"y": [False]})])", "[any()]"}},
      {ToolFormat::kGlm,
       {"<tool_call>put\n<arg_key>text</arg_key>\n<arg_value>a < \"b\"\n</arg_value>\n"
        "<arg_key>n</arg_key>\n<arg_value>null</arg_value>\n"
        "<arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n"
        "<arg_key>code</arg_key>\n<arg_value>a/b</arg_value>\n"
        "<arg_key>list</arg_key>\n<arg_value>[\"x/y\", \"\\n\"]</arg_value>\n</tool_call>",
        "<tool_call>put<arg_key>text</arg_key><arg_value></arg_value>"
        "<arg_key>n</arg_key><arg_value>true</arg_value></tool_call>",
        "<tool_call>any\n<arg_key>x</arg_key>\n<arg_value>{\"y\": [false]}</arg_value>\n"
        "</tool_call>",
        "<tool_call>any\n</tool_call>"}},
      {ToolFormat::kQwenCoder,
       {"<tool_call>\n<function=put>\n<parameter=text>\na < \"b\"\n\n</parameter>\n"
        "<parameter=n>\nnull\n</parameter>\n<parameter=unit>\nC\n</parameter>\n"
        "<parameter=code>\na/b\n</parameter>\n"
        "<parameter=list>\n[\"x/y\", \"\\n\"]\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=put>\n<parameter=text>\n\n</parameter>\n"
        "<parameter=n>\ntrue\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=any>\n<parameter=x>\n{\"y\": [false]}\n</parameter>\n"
        "</function>\n</tool_call>",
        "<tool_call>\n<function=any>\n</function>\n</tool_call>"}},
  };
  const std::vector<std::pair<std::string, Json>> wanted = {{"put", all},
                                                            {"put", {{"text", ""}, {"n", true}}},
                                                            {"any", {{"x", {{"y", {false}}}}}},
                                                            {"any", Json::object()}};
  OfferedTools offered;
  for (const CallableTool& tool : tools) offered[tool.name] = {tool.text_parameters};
  for (const auto& [format, texts] : cases) {
    const auto grammar = CallGrammar(format, tools, {.parallel = true});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    const grammar::Matcher matcher(grammar::Ebnf(*grammar));
    ASSERT_EQ(matcher.error(), "") << *grammar;
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_TRUE(matcher.Matches(texts[i])) << texts[i];
      EXPECT_FALSE(matcher.Matches(texts[i] + "x"));
      OutputOptions options = AllSpecial(With(format));
      options.offered = offered;
      const Json parsed = Parse(options, texts[i]);
      ASSERT_EQ(parsed["calls"].size(), 1u) << texts[i] << parsed;
      EXPECT_EQ(parsed["malformed"], 0);
      EXPECT_EQ(parsed["calls"][0][1], wanted[i].first);
      EXPECT_EQ(Json::parse(parsed["calls"][0][2].get<std::string>()), wanted[i].second);
    }
  }
}

TEST(CallGrammarTest, WhatBreaksAnArgumentIsNotWritten) {
  const std::vector<CallableTool> tools = {
      {"put",
       R"({"type": "object", "required": ["n"], "properties": {"text": {"type": "string"},
           "unit": {"enum": ["C", "</arg_value>"]}, "n": {"type": "integer"}}})",
       {"text", "unit"}}};
  const auto matches = [&](ToolFormat format, const std::string& text) {
    return grammar::Matches(grammar::Ebnf(CallGrammar(format, tools, {}).value()), text);
  };
  const auto glm = [](const std::string& key, const std::string& value) {
    return "<tool_call>put<arg_key>" + key + "</arg_key><arg_value>" + value +
           "</arg_value><arg_key>n</arg_key><arg_value>1</arg_value></tool_call>";
  };
  EXPECT_TRUE(matches(ToolFormat::kGlm, glm("text", "x")));
  EXPECT_FALSE(matches(ToolFormat::kGlm, glm("text", "x</arg_value>y")));
  EXPECT_TRUE(matches(ToolFormat::kGlm, glm("unit", "C")));
  EXPECT_FALSE(matches(ToolFormat::kGlm, glm("unit", "</arg_value>")));
  EXPECT_FALSE(matches(ToolFormat::kGlm, glm("unit", "\"C\"")));
  EXPECT_FALSE(matches(ToolFormat::kGlm, "<tool_call>put</tool_call>")) << "n is required";
  EXPECT_TRUE(matches(ToolFormat::kPythonic, R"([put(text="\"", n=1)])"));
  EXPECT_FALSE(matches(ToolFormat::kPythonic, R"([put(text="\/", n=1)])")) << "a backslash there";
  EXPECT_FALSE(matches(ToolFormat::kPythonic, R"([put(text="\ud83d\ude00", n=1)])"));
  EXPECT_FALSE(matches(ToolFormat::kPythonic, "[]"));
  const std::vector<CallableTool> any = {{"any", R"({"type": "object"})"}};
  EXPECT_FALSE(grammar::Matches(grammar::Ebnf(CallGrammar(ToolFormat::kPythonic, any, {}).value()),
                                "[any(x=1, x=2)]"));
}

TEST(CallGrammarTest, ArgumentsOfFunctionsThatAreNotStrictMayBeAny) {
  const std::vector<CallableTool> tools = {{"now", ""}, {"get", kTools[0].schema, {"city"}}};
  const auto matches = [&](ToolFormat format, const std::string& text) {
    return grammar::Matches(grammar::Ebnf(CallGrammar(format, tools, {.forced = false}).value()),
                            text);
  };
  EXPECT_TRUE(matches(ToolFormat::kHermes,
                      "So: <tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1}}\n"
                      "</tool_call>."));
  EXPECT_TRUE(matches(ToolFormat::kGlm, "So: <tool_call>now<arg_key>any</tool_call>."));
  EXPECT_FALSE(matches(ToolFormat::kGlm, "So: <tool_call>get</tool_call>."));
  EXPECT_TRUE(matches(ToolFormat::kQwenCoder, "<tool_call>\n<function=now>\nx</tool_call>"));
}

TEST(CallGrammarTest, WhatAFormatCanNotWriteIsRefused) {
  EXPECT_TRUE(absl::IsUnimplemented(CallGrammar(ToolFormat::kNone, kTools, {}).status()));
  EXPECT_TRUE(absl::IsUnimplemented(
      CallGrammar(ToolFormat::kPythonic, kTools, {.forced = false}).status()));
  EXPECT_TRUE(absl::IsUnimplemented(
      CallGrammar(ToolFormat::kPythonic, {{"get-it", kTools[0].schema}}, {}).status()));
  const std::pair<ToolFormat, const char*> cases[] = {
      {ToolFormat::kPythonic, R"({"properties": {"a-b": {}}})"},
      {ToolFormat::kGlm, R"({"properties": {"a>b": {}}})"},
      {ToolFormat::kQwenCoder, R"({"properties": {" a": {}}})"}};
  for (const auto& [format, schema] : cases) {
    const std::string error =
        grammar::ErrorOf(grammar::Ebnf(CallGrammar(format, {{"f", schema}}, {}).value()));
    EXPECT_NE(error.find("the model's format of calls has no arguments of this name"),
              std::string::npos)
        << error;
  }
  EXPECT_NE(grammar::ErrorOf(
                grammar::Ebnf(
                    CallGrammar(ToolFormat::kGlm, {{"f", R"({"type": "string"})"}}, {}).value()))
                .find("arguments are an object"),
            std::string::npos);
}

}  // namespace
}  // namespace baton::chat
