#include "common/tokenizer/chat/output/output_parser.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "common/base/random.h"
#include "common/tokenizer/chat/output/testing/parsed_answer.h"

namespace baton::chat {
namespace {

TEST(OutputParserTest, TextWithoutMarksIsContentAsItIs) {
  for (const ToolFormat tools : {ToolFormat::kNone, ToolFormat::kHermes, ToolFormat::kJson}) {
    for (const std::string text : {" a <b> \n", "", "  ", "<tool_", "x <"}) {
      EXPECT_EQ(Parse(With(tools, ReasoningFormat::kThink), text), Said(text));
    }
  }
}

TEST(OutputParserTest, HermesCalls) {
  EXPECT_EQ(
      Parse(With(ToolFormat::kHermes),
            "Let me see.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\":  \"<Ulm>\","
            " \"n\": [1, {}]}}\n</tool_call>\n<tool_call>{\"name\":\"now\"}</tool_call>\n"),
      Said("Let me see.", {{"", "get", R"({"city":  "<Ulm>", "n": [1, {}]})"}, {"", "now", "{}"}}));
  // A string that holds an object, and the last end mark missing.
  EXPECT_EQ(
      Parse(With(ToolFormat::kHermes), R"(<tool_call>{"arguments": "{\"a\": 1}", "name": "f"})"),
      Said("", {{"", "f", R"({"a": 1})"}}));
}

TEST(OutputParserTest, MalformedCallsAreContent) {
  const OutputOptions hermes = With(ToolFormat::kHermes);
  for (const std::string body :
       {"", "x", "{}", R"({"name": "f", "arguments": 3})", R"({"name": "", "arguments": {}})",
        R"({"name": "f", "arguments": "x"})", R"([{"name": "f"}])", R"({"name": "f")",
        R"({"name": ["f"], "arguments": {}})"}) {
    const std::string text = "a <tool_call>" + body + "</tool_call> b";
    EXPECT_EQ(Parse(hermes, text), Said(text, Json::array(), 1));
    EXPECT_EQ(Parse(AllSpecial(hermes), text), Said("a " + body + " b", Json::array(), 1));
    EXPECT_EQ(Parse(hermes, "<tool_call>" + body), Said("<tool_call>" + body, Json::array(), 1));
  }
  const std::string deep =
      R"({"name": "f", "arguments": {"a": )" + std::string(99, '[') + std::string(99, ']') + "}}";
  EXPECT_EQ(Parse(hermes, "<tool_call>" + deep + "</tool_call>")["malformed"], 1);
}

TEST(OutputParserTest, Llama3Calls) {
  const OutputOptions llama = AllSpecial(With(ToolFormat::kLlama3));
  const Json get = {"", "get", R"({"city": "}{"})"};
  const std::string call = R"({"name": "get", "parameters": {"city": "}{"}})";
  EXPECT_EQ(Parse(llama, call), Said("", {get}));
  EXPECT_EQ(Parse(llama, "<|python_tag|>" + call + "; " + call), Said("", {get, get}));
  EXPECT_EQ(Parse(llama, "Now: <|python_tag|>" + call), Said("Now:", {get}));
  EXPECT_EQ(Parse(llama, R"({"type": "function", "name": "now"})"), Said("", {{"", "now", "{}"}}));
  // JSON that is an answer, and code, are content.
  for (const std::string text :
       {R"({"temperature": 3})", R"({"name": "Ann", "parameters_of": 1})", "{\"name\": \"get\"",
        "{", R"(["get"])", R"(The call is {"name": "get", "parameters": {}})"}) {
    EXPECT_EQ(Parse(llama, text)["content"], text);
  }
  EXPECT_EQ(Parse(llama, R"({"temperature": 3})")["malformed"], 0);
  EXPECT_EQ(Parse(llama, R"({"name": "other", "parameters": {}})")["malformed"], 1);
  EXPECT_EQ(Parse(llama, "<|python_tag|>print(1)"), Said("print(1)", Json::array(), 1));
}

TEST(OutputParserTest, JsonThatIsNoCallIsStreamedAsItComes) {
  Answer answer(With(ToolFormat::kLlama3));
  answer.Add(R"({"weather": "su)");
  EXPECT_EQ(answer.content(), R"({"weather": "su)");
}

TEST(OutputParserTest, PythonicCalls) {
  const OutputOptions python = AllSpecial(With(ToolFormat::kPythonic));
  EXPECT_EQ(
      Parse(python, R"([get(city='U"]m\n\u00fc', n=-1.5, t=True, l=[1, None], d={'a': (2,)}), )"
                    R"(now( )])"),
      Said("", {{"", "get",
                 R"({"city": "U\"]m\nü", "n": -1.5, "t": true, "l": [1, null], )"
                 R"("d": {"a": [2]}})"},
                {"", "now", "{}"}}));
  EXPECT_EQ(Parse(python, "<|python_start|>[now()]<|python_end|>"), Said("", {{"", "now", "{}"}}));
  for (const std::string text : {"[1, 2]", "[now]", "[", "[a b(", "[unknown()]", "now()"}) {
    EXPECT_EQ(Parse(python, text)["content"], text);
  }
  for (const std::string text :
       {"[get(1)]", "[get(city=1, city=2)]", "[get(city='x]", "[get(city=x)]", "[get(city=01)]",
        "[get(city='\\ud800')]", "[get() now()]"}) {
    EXPECT_EQ(Parse(python, "<|python_tag|>" + text), Said(text, Json::array(), 1));
  }
}

TEST(OutputParserTest, MistralCalls) {
  const OutputOptions mistral = AllSpecial(With(ToolFormat::kMistral));
  const Json get = {"", "get", R"({"city": "Ulm"})"};
  EXPECT_EQ(Parse(mistral, R"(Yes. [TOOL_CALLS] [{"name": "get", "arguments": {"city": "Ulm"}}, )"
                           R"({"name": "now", "arguments": {}}])"),
            Said("Yes.", {get, {"", "now", "{}"}}));
  EXPECT_EQ(Parse(mistral, R"([TOOL_CALLS]get[ARGS]{"city": "Ulm"}[TOOL_CALLS]get{"city": "Ulm"})"),
            Said("", {get, get}));
  EXPECT_EQ(Parse(mistral, R"([TOOL_CALLS]now[CALL_ID]a1b[ARGS]{})"),
            Said("", {{"a1b", "now", "{}"}}));
  EXPECT_EQ(Parse(mistral, "[TOOL_CALLS] none"), Said(" none", Json::array(), 1));
  EXPECT_EQ(Parse(mistral, R"([TOOL_CALLS] ["now"] b)"), Said(R"( ["now"] b)", Json::array(), 1));
}

TEST(OutputParserTest, DeepSeekCalls) {
  const OutputOptions deepseek = AllSpecial(With(ToolFormat::kDeepSeekV3));
  const std::string begin = "<｜tool▁call▁begin｜>";
  const std::string end = "<｜tool▁call▁end｜>";
  const std::string v3 =
      begin + "function<｜tool▁sep｜>get\n```json\n{\"city\": \"Ulm\"}\n```" + end;
  const std::string v31 = begin + "now<｜tool▁sep｜>{}" + end;
  EXPECT_EQ(Parse(deepseek, "So:<｜tool▁calls▁begin｜>" + v3 + "\n" + v31 + "<｜tool▁calls▁end｜>"),
            Said("So:", {{"", "get", R"({"city": "Ulm"})"}, {"", "now", "{}"}}));
  EXPECT_EQ(Parse(deepseek, begin + "now" + end), Said("now", Json::array(), 1));
}

TEST(OutputParserTest, KimiCallsKeepTheirIds) {
  const OutputOptions kimi = AllSpecial(With(ToolFormat::kKimi, ReasoningFormat::kThink));
  const std::string call =
      "<|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>"
      "{\"city\": \"Ulm\"}<|tool_call_end|>";
  EXPECT_EQ(Parse(kimi, "<think>Hm.</think><|tool_calls_section_begin|>" + call +
                            "<|tool_calls_section_end|>"),
            Said("", {{"functions.get:0", "get", R"({"city": "Ulm"})"}}, 0, "Hm."));
}

TEST(OutputParserTest, GlmCallsTakeTypesFromTheSchema) {
  const std::string call =
      "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n"
      "<arg_key>n</arg_key><arg_value>12</arg_value><arg_key>s</arg_key><arg_value>a\"b</arg_value>"
      "</tool_call>";
  EXPECT_EQ(Parse(With(ToolFormat::kGlm), call + "\n<tool_call>now</tool_call>"),
            Said("", {{"", "get", R"({"city": "12", "n": 12, "s": "a\"b"})"}, {"", "now", "{}"}}));
  EXPECT_EQ(Parse(With(ToolFormat::kGlm), "<tool_call>get<arg_key>a</tool_call>")["malformed"], 1);
}

TEST(OutputParserTest, QwenCoderCalls) {
  const auto call = [](const std::string& parameters) {
    return "<tool_call>\n<function=get>\n" + parameters + "</function>\n</tool_call>";
  };
  const auto parameter = [](const std::string& name, const std::string& value) {
    return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
  };
  const OutputOptions qwen = With(ToolFormat::kQwenCoder);
  EXPECT_EQ(
      Parse(qwen, "So:\n" +
                      call(parameter("city", "12") + parameter("n", "12") + parameter("b", "True") +
                           parameter("l", "[1, {}]") + parameter("s", " a\n\"b\" ")) +
                      "\n<tool_call><function=now></function></tool_call>"),
      Said("So:",
           {{"", "get", R"({"city": "12", "n": 12, "b": true, "l": [1, {}], "s": " a\n\"b\" "})"},
            {"", "now", "{}"}}));
  // Marks within a value, and an end mark that is missing.
  const std::string marks = "</parameter> <tool_call></function>\n</tool_call>";
  EXPECT_EQ(Parse(qwen, call(parameter("city", marks))),
            Said("", {{"", "get", "{\"city\": " + Json(marks).dump() + "}"}}));
  EXPECT_EQ(Parse(qwen, "<tool_call><function=now>\n</function>"), Said("", {{"", "now", "{}"}}));
  for (const std::string& body :
       {std::string("<function=now>"), std::string("<function=></function>"),
        std::string("now</function>"), "<function=get>" + parameter("a", "1"),
        "<function=get>" + parameter("a", "1") + parameter("a", "2") + "</function>",
        std::string("<function=get><parameter=a>1</function>"),
        std::string("<function=get>x</function>")}) {
    const std::string text = "<tool_call>" + body + "</tool_call>";
    EXPECT_EQ(Parse(qwen, text), Said(text, Json::array(), 1));
    EXPECT_EQ(Parse(qwen, "<tool_call>" + body)["calls"].size(), 0u) << body;
  }
}

TEST(OutputParserTest, PlainJsonCalls) {
  const std::string two =
      R"([{"name": "now", "arguments": {}}, {"name": "get", "arguments": {"city": "Ulm"}}])";
  EXPECT_EQ(Parse(With(ToolFormat::kJson), two),
            Said("", {{"", "now", "{}"}, {"", "get", R"({"city": "Ulm"})"}}));
  EXPECT_EQ(Parse(With(ToolFormat::kJson), R"([{"a": 1}])"), Said(R"([{"a": 1}])"));
}

TEST(OutputParserTest, Reasoning) {
  OutputOptions think = With(ToolFormat::kHermes, ReasoningFormat::kThink);
  EXPECT_EQ(Parse(think, "\n<think>\na <tool_call> b\n</think>\n\nc </think> <think>"),
            Said("c </think> <think>", Json::array(), 0, "a <tool_call> b"));
  EXPECT_EQ(Parse(think, "<think>cut o"), Said("", Json::array(), 0, "cut o"));
  EXPECT_EQ(Parse(think, "a <think>"), Said("a <think>"));
  // A special token is never prose.
  EXPECT_EQ(Parse(AllSpecial(think), "a <think> b </think> c </think>"),
            Said("ac", Json::array(), 0, "b"));
  EXPECT_EQ(Parse(AllSpecial(think), "<think>a<think>b"), Said("", Json::array(), 0, "ab"));
  think.starts_in_reasoning = true;
  EXPECT_EQ(Parse(think, "a\n</think>\n\n<tool_call>{\"name\": \"now\"}</tool_call>"),
            Said("", {{"", "now", "{}"}}, 0, "a"));
  EXPECT_EQ(Parse(think, "<think>a</think>b"), Said("b", Json::array(), 0, "a"));
  EXPECT_EQ(Parse(With(ToolFormat::kNone, ReasoningFormat::kKimi), "◁think▷a◁/think▷b"),
            Said("b", Json::array(), 0, "a"));
  EXPECT_EQ(Parse(With(ToolFormat::kLlama3, ReasoningFormat::kThink),
                  "<think>a</think>\n{\"name\": \"now\", \"parameters\": {}}"),
            Said("", {{"", "now", "{}"}}, 0, "a"));
}

TEST(OutputParserTest, ThePromptsEndSaysWhereAnAnswerBegins) {
  const auto inside = [](ReasoningFormat format, const char* tail) {
    return StartsInReasoning(format, tail);
  };
  EXPECT_TRUE(inside(ReasoningFormat::kThink, "<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(inside(ReasoningFormat::kThink, "<|im_start|>assistant\n"));
  EXPECT_FALSE(inside(ReasoningFormat::kThink, "<think>\n\n</think>\n\n"));
  EXPECT_TRUE(inside(ReasoningFormat::kThinkInside, "<|Assistant|>"));
  EXPECT_FALSE(inside(ReasoningFormat::kThinkInside, "<|Assistant|></think>"));
  EXPECT_FALSE(inside(ReasoningFormat::kNone, "<think>"));
}

// Texts of marks, halves of them, calls and prose, for every format, in pieces of any size.
TEST(OutputParserTest, AnyTextInAnyPiecesGivesTheSame) {
  Random random(7);
  for (int round = 0; round < 4000; ++round) {
    OutputOptions options =
        With(static_cast<ToolFormat>(random.Below(static_cast<uint64_t>(ToolFormat::kJson) + 1)),
             static_cast<ReasoningFormat>(
                 random.Below(static_cast<uint64_t>(ReasoningFormat::kMistral) + 1)));
    if (random.Chance(0.5)) options = AllSpecial(std::move(options));
    options.starts_in_reasoning = random.Chance(0.2);
    std::vector<std::string> fragments = AllMarks(options.tools, options.reasoning);
    for (const char* fragment : {" ",
                                 "\n",
                                 ";",
                                 "a",
                                 "[",
                                 "]",
                                 "{",
                                 "}",
                                 "get",
                                 "now(",
                                 ")",
                                 "\"",
                                 "'",
                                 R"({"name": "now"})",
                                 "[now()]",
                                 R"({"name": "get", "arguments": {"city": "Ulm"}})",
                                 "functions.get:0",
                                 "{}",
                                 R"({"name": "get", "arguments": {"city": ")",
                                 R"("}})",
                                 "<function=now>",
                                 "</function>",
                                 "<parameter=city>",
                                 "</parameter>"}) {
      fragments.emplace_back(fragment);
    }
    std::string text;
    for (uint64_t i = random.Below(12); i > 0; --i) {
      std::string fragment = fragments[random.Below(fragments.size())];
      if (random.Chance(0.2)) fragment.resize(random.Below(fragment.size() + 1));
      text += fragment;
    }
    const Json whole = Answer(options).Add(text).End();
    Answer pieces(options);
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random.Below(random.Chance(0.5) ? 2 : 30);
      pieces.Add(std::string_view(text).substr(at, length));
      at += length;
    }
    ASSERT_EQ(pieces.End(), whole)
        << NameOf(options.tools) << " " << NameOf(options.reasoning) << ": " << text;
  }
}

TEST(OutputParserTest, OnlyTheFirstCallIfTheyMustNotBeParallel) {
  OutputOptions options = With(ToolFormat::kHermes);
  options.parallel_calls = false;
  const std::string call = "<tool_call>{\"name\": \"now\"}</tool_call>";
  EXPECT_EQ(Parse(options, call + call), Said("", {{"", "now", "{}"}}));
}

TEST(OutputParserTest, TheLengthOfACallAndTheirNumberAreBounded) {
  const std::string long_text(OutputOptions::kMaxCallBytes + 10, 'x');
  for (const auto& [tools, begin] : {std::pair{ToolFormat::kHermes, "<tool_call>"},
                                     std::pair{ToolFormat::kMistral, "[TOOL_CALLS][\""},
                                     std::pair{ToolFormat::kJson, "{\"name\": \""}}) {
    const OutputOptions options = With(tools);
    const std::string text = begin + long_text + "</tool_call> after";
    Answer answer(options);
    answer.Add(text);
    EXPECT_GE(answer.content().size(), OutputOptions::kMaxCallBytes);
    const Json whole = answer.End();
    EXPECT_EQ(whole, Said(text, Json::array(), 1));
    Answer pieces(options);
    for (size_t at = 0; at < text.size(); at += 1000) pieces.Add(text.substr(at, 1000));
    EXPECT_EQ(pieces.End(), whole);
  }
  Answer many(With(ToolFormat::kHermes));
  for (int i = 0; i < OutputOptions::kMaxCalls + 2; ++i) {
    many.Add("<tool_call>{\"name\": \"now\"}</tool_call>");
  }
  const Json end = many.End();
  EXPECT_EQ(end["calls"].size(), static_cast<size_t>(OutputOptions::kMaxCalls));
  EXPECT_EQ(end["malformed"], 2);
}

// Quadratic work on these would take minutes.
TEST(OutputParserTest, ManyMarksInOneText) {
  std::string marks;
  while (marks.size() < OutputOptions::kMaxCallBytes) marks += "<|tool_calls_section_end|>{";
  EXPECT_EQ(Answer(AllSpecial(With(ToolFormat::kKimi))).Add(marks).End()["malformed"], 0);
  std::string calls = "{\"name\": \"";
  while (calls.size() < OutputOptions::kMaxCallBytes) calls += "<|python_tag|>{}{\"name\": \"";
  const OutputOptions llama = AllSpecial(With(ToolFormat::kLlama3));
  EXPECT_GT(Answer(llama).Add(calls).End()["malformed"], 1000);
}

TEST(OutputParserTest, ALimitDoesNotCutACharacter) {
  std::string text = "<tool_call>x";
  while (text.size() < OutputOptions::kMaxCallBytes + 100) text += "ü";
  Answer answer(With(ToolFormat::kHermes));
  answer.Add(text);
  EXPECT_NE(static_cast<unsigned char>(answer.content().back()), 0xc3);
}

}  // namespace
}  // namespace baton::chat
