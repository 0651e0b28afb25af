// Calls as models break them: cut off, begun twice, never ended, with marks in their strings.
#include <gtest/gtest.h>

#include "common/tokenizer/chat/output/testing/parsed_answer.h"

namespace baton::chat {
namespace {

constexpr char kNow[] = R"(<tool_call>{"name": "now"}</tool_call>)";

TEST(BrokenCallsTest, ACallThatWasCutOffIsNone) {
  const std::string key = "<arg_key>city</arg_key><arg_value>Ulm</arg_value>";
  const std::pair<ToolFormat, std::string> cases[] = {
      {ToolFormat::kGlm, "<tool_call>get_wea"},
      {ToolFormat::kGlm, "<tool_call>get" + key},
      {ToolFormat::kKimi, "<|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>"},
      {ToolFormat::kDeepSeekV3, "<｜tool▁call▁begin｜>now<｜tool▁sep｜>"},
      {ToolFormat::kHermes, R"(<tool_call>{"name": "now", "arguments": {})"},
      {ToolFormat::kMistral, R"([TOOL_CALLS][{"name": "now", "arguments": {}})"},
  };
  for (const auto& [format, text] : cases) {
    EXPECT_EQ(Parse(With(format), text), Said(text, Json::array(), 1));
  }
}

TEST(BrokenCallsTest, ACallThatLacksNothingButItsEndMarkIsOne) {
  EXPECT_EQ(Parse(With(ToolFormat::kKimi),
                  "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{} "),
            Said("", {{"functions.now:0", "now", "{}"}}));
  EXPECT_EQ(Parse(With(ToolFormat::kDeepSeekV3),
                  "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"),
            Said("", {{"", "now", "{}"}}));
}

TEST(BrokenCallsTest, MarksInStringsAreText) {
  const std::string city = "a <tool_call>{}</tool_call> b </tool_call> \\\" c";
  const std::string call =
      R"(<tool_call>{"name": "get", "arguments": {"city": ")" + city + R"("}}</tool_call>)";
  const Json get = {"", "get", R"({"city": ")" + city + R"("})"};
  EXPECT_EQ(Parse(With(ToolFormat::kHermes), "So: " + call + kNow + " x"),
            Said("So:x", {get, {"", "now", "{}"}}));
  EXPECT_EQ(Parse(With(ToolFormat::kGlm),
                  "<tool_call>get<arg_key>city</arg_key><arg_value>a <tool_call></tool_call>"
                  "</arg_value></tool_call>"),
            Said("", {{"", "get", R"({"city": "a <tool_call></tool_call>"})"}}));
}

TEST(BrokenCallsTest, AStringThatNeverEndsHidesNoOtherCall) {
  const std::string broken = R"(<tool_call>{"name": "f, "arguments": {}}</tool_call>)";
  EXPECT_EQ(Parse(With(ToolFormat::kHermes), broken + kNow), Said(broken, {{"", "now", "{}"}}, 1));
  std::string many = broken;
  for (int i = 0; i < 20; ++i) many += kNow;
  const Json answer = Parse(With(ToolFormat::kHermes), many);
  EXPECT_EQ(answer["calls"].size(), 20u);
  EXPECT_EQ(answer["malformed"], 1);
  Answer streamed(With(ToolFormat::kHermes));
  streamed.Add(many);
  EXPECT_EQ(streamed.content(), broken) << "what follows is held back for a while only";
}

TEST(BrokenCallsTest, ACallThatIsBegunTwiceIsRead) {
  EXPECT_EQ(Parse(With(ToolFormat::kHermes), std::string("<tool_call>\n") + kNow),
            Said("<tool_call>", {{"", "now", "{}"}}, 1));
  EXPECT_EQ(Parse(AllSpecial(With(ToolFormat::kHermes)), std::string("<tool_call>\n") + kNow),
            Said("", {{"", "now", "{}"}}, 1));
  EXPECT_EQ(Parse(With(ToolFormat::kHermes), std::string("Use <tool_call> for calls: ") + kNow),
            Said("Use <tool_call> for calls:", {{"", "now", "{}"}}, 1));
  EXPECT_EQ(Parse(With(ToolFormat::kHermes), R"(<tool_call><tool_call>{"name": "now"})"),
            Said("<tool_call>", {{"", "now", "{}"}}, 1));
}

TEST(BrokenCallsTest, TheNextCallEndsOneThatLacksItsMark) {
  EXPECT_EQ(Parse(With(ToolFormat::kHermes), std::string(R"(<tool_call>{"name": "now"})") + kNow),
            Said("", {{"", "now", "{}"}, {"", "now", "{}"}}));
}

TEST(BrokenCallsTest, MarksWithoutEndAreReadInTime) {
  std::string marks;
  while (marks.size() < OutputOptions::kMaxCallBytes) marks += "<tool_call>";
  EXPECT_EQ(Answer(With(ToolFormat::kHermes)).Add(marks + kNow).End()["calls"].size(), 0u);
  marks.resize(marks.size() / 2 / 11 * 11);
  EXPECT_EQ(Answer(With(ToolFormat::kHermes)).Add(marks + kNow).End(),
            Said(marks, {{"", "now", "{}"}}, 9));
  std::string open;
  while (open.size() < OutputOptions::kMaxCallBytes) open += R"(<tool_call>{"</tool_call>)";
  EXPECT_EQ(Answer(With(ToolFormat::kHermes)).Add(open).End()["content"], open);
}

TEST(BrokenCallsTest, SpecialTokensOfCallsEndReasoning) {
  const std::string call =
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}"
      "<|tool_call_end|><|tool_calls_section_end|>";
  OutputOptions kimi = AllSpecial(With(ToolFormat::kKimi, ReasoningFormat::kThink));
  EXPECT_EQ(Parse(kimi, "<think>Hm. " + call),
            Said("", {{"functions.now:0", "now", "{}"}}, 0, "Hm."));
  EXPECT_EQ(Parse(kimi, "<think>a<|tool_call_argument_begin|>b</think>c"),
            Said("c", Json::array(), 0, "ab"));
  // Where marks are words, reasoning may be about them.
  EXPECT_EQ(Parse(With(ToolFormat::kHermes, ReasoningFormat::kThink),
                  std::string("<think>a ") + kNow + "</think>c"),
            Said("c", Json::array(), 0, std::string("a ") + kNow));
}

}  // namespace
}  // namespace baton::chat
