// Reasoning in chats: where it begins, how it is told, what turns it off.
#include "common/tokenizer/chat/jinja/json.h"
#include "services/router/http/testing/handler_fixture.h"

namespace baton::router {
namespace {

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "<think>\nOne and one.\n</think>\n\nTwo.";

class ReasoningTest : public HandlerFixture {
 protected:
  ReasoningTest() { gateway_.format.reasoning = chat::ReasoningFormat::kThink; }

  static Json Request(const std::string& content, const Json& more = Json::object()) {
    Json body = {{"messages", {{{"role", "user"}, {"content", content}}}}};
    body.update(more);
    return body;
  }
  // The message of an answer with this text.
  Json MessageOf(const Json& request, const std::string& text) {
    const auto exchange = Post(kChat, request);
    gateway_.sinks.back()->OnTokens({text, {}});
    gateway_.sinks.back()->OnFinished(Finished(FinishReason::kStop));
    return exchange->Body()["choices"][0]["message"];
  }
};

TEST_F(ReasoningTest, StandsBesideTheContent) {
  EXPECT_EQ(
      MessageOf(Request("x"), kText),
      Json({{"role", "assistant"}, {"content", "Two."}, {"reasoning_content", "One and one."}}));
  EXPECT_EQ(MessageOf(Request("x"), "Two."), Json({{"role", "assistant"}, {"content", "Two."}}));
}

TEST_F(ReasoningTest, MayBeAllThatThereIs) {
  const Json message = MessageOf(Request("x"), "<think>One and");
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_EQ(message["reasoning_content"], "One and");
}

// The fake gateway's prompt ends with the message's content.
TEST_F(ReasoningTest, BeginsWhereThePromptOpensIt) {
  EXPECT_EQ(MessageOf(Request("assistant\n<think>\n"), "One.\n</think>\nTwo."),
            Json({{"role", "assistant"}, {"content", "Two."}, {"reasoning_content", "One."}}));
  EXPECT_EQ(MessageOf(Request("<think>\n\n</think>\n\n"), "Two.")["content"], "Two.");
}

TEST_F(ReasoningTest, MayHaveABudget) {
  const auto structure_of = [&](const Json& request) {
    const auto exchange = Post(kChat, request);
    EXPECT_FALSE(exchange->response.has_value()) << exchange->response->body;
    return gateway_.calls.back().sampling.structure();
  };
  for (const char* name : {"thinking_token_budget", "thinking_budget"}) {
    const v1::TextStructure asked = structure_of(Request("<think>\n", {{name, 7}}));
    EXPECT_EQ(asked.reasoning_budget(), 7);
    EXPECT_EQ(asked.reasoning_begin() + asked.reasoning_end(), "<think></think>");
    EXPECT_TRUE(asked.in_reasoning());
    EXPECT_EQ(asked.kind_case(), v1::TextStructure::KIND_NOT_SET);
  }
  EXPECT_TRUE(structure_of(Request("x", {{"thinking_budget", 0}})).has_reasoning_budget());
  EXPECT_FALSE(structure_of(Request("x")).has_reasoning_budget());
  // Behind a prompt that says that there is none, a text has to begin at once.
  EXPECT_EQ(
      structure_of(Request("<think>\n\n</think>\n\n", {{"guided_regex", "a"}})).reasoning_end(),
      "");
  EXPECT_EQ(structure_of(Request("x", {{"guided_regex", "a"}})).reasoning_end(), "</think>");
  // Beside a structure, and where reasoning is not told apart.
  const v1::TextStructure both =
      structure_of(Request("x", {{"guided_regex", "a"}, {"thinking_budget", 3}}));
  EXPECT_EQ(both.regex(), "a");
  EXPECT_EQ(both.reasoning_budget(), 3);
  const Json plain = {{"thinking_budget", 3}, {"separate_reasoning", false}};
  EXPECT_EQ(structure_of(Request("<think>\n", plain)).reasoning_budget(), 3);
  EXPECT_EQ(MessageOf(Request("<think>\n", plain), "a</think>b")["content"], "a</think>b");
  for (const Json& bad : {Json(-1), Json(1.5), Json("x"), Json(int64_t{1} << 31)}) {
    EXPECT_EQ(ErrorOf(kChat, Request("x", {{"thinking_budget", bad}}).dump())["param"],
              "thinking_budget");
  }
  EXPECT_EQ(ErrorOf("/v1/completions", R"({"prompt": "a", "thinking_token_budget": 3})")["param"],
            "thinking_token_budget");
  gateway_.format.reasoning = chat::ReasoningFormat::kNone;
  EXPECT_FALSE(structure_of(Request("x", {{"thinking_budget", 3}})).has_reasoning_budget());
  EXPECT_EQ(gateway_.calls.back().warnings.size(), 1u);
}

TEST_F(ReasoningTest, IsStreamed) {
  const auto exchange = Post(kChat, Request("x", {{"stream", true}}));
  for (const char c : std::string(kText)) {
    gateway_.sinks[0]->OnTokens({std::string(1, c), {}});
  }
  gateway_.sinks[0]->OnFinished(Finished(FinishReason::kStop));
  std::string reasoning;
  std::string content;
  for (const std::string& event : exchange->events) {
    if (event == "[DONE]") continue;
    const Json delta = Json::parse(event)["choices"][0]["delta"];
    EXPECT_FALSE(!content.empty() && delta.contains("reasoning_content"));
    reasoning += delta.value("reasoning_content", "");
    content += delta.value("content", "");
  }
  EXPECT_EQ(reasoning, "One and one.");
  EXPECT_EQ(content, "Two.");
}

TEST_F(ReasoningTest, ItsTokensAreCounted) {
  const auto counted = [&](const Json& more, const std::vector<std::string>& tokens) {
    const auto exchange = Post(kChat, Request("x", more));
    for (const std::string& token : tokens) {
      gateway_.sinks.back()->OnTokens({token, {Token("x", 0)}});
    }
    gateway_.sinks.back()->OnFinished(Finished(FinishReason::kStop));
    const bool streamed = !exchange->events.empty();
    const Json last = streamed ? exchange->Event(exchange->events.size() - 2) : exchange->Body();
    return last["usage"]["completion_tokens_details"]["reasoning_tokens"];
  };
  const Json streamed = {{"stream", true}, {"stream_options", {{"include_usage", true}}}};
  for (const Json& more : {Json::object(), streamed, Json{{"include_reasoning", false}}}) {
    EXPECT_EQ(counted(more, {"<think>", "\n", "One.", "</think>", "\n\n", "Two", "."}), 4) << more;
    EXPECT_EQ(counted(more, {"<th", "ink>", "", "One.", "</th", "ink>", "Two"}), 6) << more;
    EXPECT_EQ(counted(more, {"<th", "ere", " is"}), 0) << more;
  }
  EXPECT_EQ(counted({{"separate_reasoning", false}}, {"<think>", "One.", "</think>"}), 0);
}

TEST_F(ReasoningTest, MayBeLeftInTheContentOrOut) {
  EXPECT_EQ(MessageOf(Request("x", {{"separate_reasoning", false}}), kText)["content"], kText);
  EXPECT_EQ(MessageOf(Request("x", {{"include_reasoning", false}}), kText),
            Json({{"role", "assistant"}, {"content", "Two."}}));
}

TEST_F(ReasoningTest, EffortIsAVariableOfTheTemplate) {
  gateway_.format.reasoning = chat::ReasoningFormat::kNone;
  const auto variables = [&](const Json& more) {
    Post(kChat, Request("x", more));
    jinja::Budget budget{jinja::RenderLimits()};
    const auto& chat = std::get<ChatPrompt>(gateway_.calls.back().prompt);
    return Json::parse(jinja::ToJson(chat.variables, {}, budget).value().bytes());
  };
  EXPECT_EQ(variables({{"reasoning_effort", "low"}}), Json({{"reasoning_effort", "low"}}));
  EXPECT_EQ(variables({{"reasoning_effort", "low"}, {"chat_template_kwargs", {{"a", 1}}}}),
            Json({{"reasoning_effort", "low"}, {"a", 1}}));
  EXPECT_EQ(variables({{"reasoning_effort", "low"},
                       {"chat_template_kwargs", {{"reasoning_effort", "high"}}}}),
            Json({{"reasoning_effort", "high"}}));
}

TEST_F(ReasoningTest, NoEffortTurnsThinkingOff) {
  gateway_.format.reasoning = chat::ReasoningFormat::kNone;
  const auto variables = [&](const Json& more) {
    Post(kChat, Request("x", more));
    jinja::Budget budget{jinja::RenderLimits()};
    const auto& chat = std::get<ChatPrompt>(gateway_.calls.back().prompt);
    return Json::parse(jinja::ToJson(chat.variables, {}, budget).value().bytes());
  };
  EXPECT_EQ(variables({{"reasoning_effort", "none"}}),
            Json({{"reasoning_effort", "none"}, {"enable_thinking", false}, {"thinking", false}}));
  EXPECT_EQ(variables({{"reasoning_effort", "none"},
                       {"chat_template_kwargs", {{"enable_thinking", true}, {"thinking", true}}}}),
            Json({{"reasoning_effort", "none"}, {"enable_thinking", true}, {"thinking", true}}));
}

// Whatever the prompt's last bytes are, the message that is continued says whether it is inside.
TEST_F(ReasoningTest, AContinuedMessageGoesOnWhereItStopped) {
  const auto continued = [&](const std::string& content) {
    return MessageOf(Request("x", {{"messages",
                                    {{{"role", "user"}, {"content", "x"}},
                                     {{"role", "assistant"}, {"content", content}}}},
                                   {"continue_final_message", true}}),
                     "One.</think>Two.");
  };
  const Json inside = {{"role", "assistant"}, {"content", "Two."}, {"reasoning_content", "One."}};
  const Json outside = {{"role", "assistant"}, {"content", "One.</think>Two."}};
  for (const auto format : {chat::ReasoningFormat::kThink, chat::ReasoningFormat::kThinkInside}) {
    gateway_.format.reasoning = format;
    EXPECT_EQ(continued("<think>\nSo "), inside);
    EXPECT_EQ(continued("<think>a</think> b <think>c"), inside);
    EXPECT_EQ(continued("<think>a</think>The answer is"), outside);
    EXPECT_EQ(continued("The answer is"), outside);
  }
}

}  // namespace
}  // namespace baton::router
