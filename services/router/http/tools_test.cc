// Tools in chats: what a request may offer, what the template hears, what an answer tells.
#include "common/tokenizer/chat/jinja/json.h"
#include "services/router/http/testing/handler_fixture.h"

namespace baton::router {
namespace {

constexpr char kCall[] = R"(<tool_call>{"name": "get", "arguments": {"city":  "Ulm"}}</tool_call>)";
constexpr char kChat[] = "/v1/chat/completions";

class ToolsTest : public HandlerFixture {
 protected:
  ToolsTest() {
    gateway_.format.tools = chat::ToolFormat::kHermes;
    gateway_.format.template_takes_tools = true;
  }

  static Json Tool(const std::string& name) {
    return {{"type", "function"},
            {"function", {{"name", name}, {"parameters", {{"type", "object"}}}}}};
  }
  static Json Request(const Json& more = Json::object()) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"tools", {Tool("get")}}};
    body.update(more);
    return body;
  }
  std::shared_ptr<FakeExchange> Chat(const Json& more = Json::object()) {
    return Post(kChat, Request(more));
  }
  void Finish(size_t call, const std::string& text, FinishReason reason = FinishReason::kStop) {
    gateway_.sinks.at(call)->OnTokens({text, {}});
    gateway_.sinks.at(call)->OnFinished(Finished(reason));
  }
  // The deltas of choice `index`, and its end.
  static std::pair<Json, std::string> Deltas(const FakeExchange& exchange, int index = 0) {
    Json deltas = Json::array();
    std::string reason;
    for (const std::string& event : exchange.events) {
      if (event == "[DONE]") continue;
      const Json choice = Json::parse(event)["choices"][0];
      if (choice["index"] != index) continue;
      deltas.push_back(choice["delta"]);
      if (choice["finish_reason"].is_string()) reason = choice["finish_reason"];
    }
    return {deltas, reason};
  }
};

TEST_F(ToolsTest, AWholeAnswerTellsCalls) {
  const auto exchange = Chat();
  Finish(0, std::string("Let me look.\n") + kCall + "\n" + kCall);
  const Json choice = exchange->Body()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Let me look.");
  const Json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["type"], "function");
  EXPECT_EQ(calls[0]["function"], Json({{"name", "get"}, {"arguments", R"({"city":  "Ulm"})"}}));
  EXPECT_TRUE(calls[0]["id"].get<std::string>().starts_with("call_"));
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
  EXPECT_FALSE(calls[0].contains("index"));
  EXPECT_EQ(gateway_.parsed_calls, 2);
  EXPECT_EQ(gateway_.malformed_calls, 0);
}

TEST_F(ToolsTest, CallsAloneHaveNoContent) {
  const auto exchange = Chat();
  Finish(0, kCall);
  EXPECT_TRUE(exchange->Body()["choices"][0]["message"]["content"].is_null());
}

TEST_F(ToolsTest, AMalformedCallIsContent) {
  const std::string text = R"(<tool_call>{"name": "get"</tool_call>)";
  const auto exchange = Chat();
  Finish(0, text);
  const Json choice = exchange->Body()["choices"][0];
  EXPECT_EQ(choice["message"], Json({{"role", "assistant"}, {"content", text}}));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(gateway_.malformed_calls, 1);
}

TEST_F(ToolsTest, ACutOffAnswerSaysSo) {
  const auto exchange = Chat();
  Finish(0, kCall, FinishReason::kLength);
  EXPECT_EQ(exchange->Body()["choices"][0]["finish_reason"], "length");
}

TEST_F(ToolsTest, AStreamTellsCallsAsOpenAiDoes) {
  const auto exchange = Chat({{"stream", true}});
  for (const char c : std::string("Hm. ") + kCall) {
    gateway_.sinks[0]->OnTokens({std::string(1, c), {}});
  }
  gateway_.sinks[0]->OnFinished(Finished(FinishReason::kStop));
  const auto [deltas, reason] = Deltas(*exchange);
  EXPECT_EQ(reason, "tool_calls");
  ASSERT_EQ(deltas.size(), 7u) << deltas;  // The role, "H", "m", ".", two of the call, the end.
  const Json& begin = deltas[4]["tool_calls"][0];
  EXPECT_EQ(begin["index"], 0);
  EXPECT_EQ(begin["type"], "function");
  EXPECT_EQ(begin["function"], Json({{"name", "get"}, {"arguments", ""}}));
  EXPECT_EQ(deltas[5],
            Json({{"tool_calls",
                   {{{"index", 0}, {"function", {{"arguments", R"({"city":  "Ulm"})"}}}}}}}));
  EXPECT_EQ(deltas[6], Json::object());
  EXPECT_EQ(gateway_.parsed_calls, 1);
}

TEST_F(ToolsTest, EachChoiceIsTakenApartByItself) {
  const auto exchange = Chat({{"stream", true}, {"n", 2}});
  const std::string call = kCall;
  gateway_.sinks[0]->OnTokens({call.substr(0, 20), {}});
  gateway_.sinks[1]->OnTokens({call.substr(0, 30), {}});
  gateway_.sinks[0]->OnTokens({call.substr(20), {}});
  gateway_.sinks[1]->OnTokens({call.substr(30), {}});
  for (const size_t i : {0, 1}) gateway_.sinks[i]->OnFinished(Finished(FinishReason::kStop));
  const Json first = Deltas(*exchange, 0).first[1]["tool_calls"][0];
  const Json second = Deltas(*exchange, 1).first[1]["tool_calls"][0];
  EXPECT_EQ(first["function"]["name"], "get");
  EXPECT_EQ(second["function"]["name"], "get");
  EXPECT_NE(first["id"], second["id"]);
}

TEST_F(ToolsTest, LogprobsOfAllTokensAreTold) {
  const auto exchange = Chat({{"stream", true}, {"logprobs", true}});
  const std::string call = kCall;
  gateway_.sinks[0]->OnTokens({call.substr(0, 5), {Token("<", -1)}});
  gateway_.sinks[0]->OnTokens({call.substr(5), {Token("t", -2)}});
  gateway_.sinks[0]->OnFinished(Finished(FinishReason::kStop));
  size_t tokens = 0;
  for (const std::string& event : exchange->events) {
    if (event == "[DONE]") continue;
    const Json logprobs = Json::parse(event)["choices"][0]["logprobs"];
    if (logprobs.is_object()) tokens += logprobs["content"].size();
  }
  EXPECT_EQ(tokens, 2u);
}

TEST_F(ToolsTest, TheRouterKeepsTheMarksThatAreSpecialTokens) {
  gateway_.format.special_marks = {"<tool_call>"};
  Chat();
  EXPECT_EQ(gateway_.calls[0].text.kept_marks, std::vector<std::string>{"<tool_call>"});
  Chat({{"tool_choice", "none"}});
  EXPECT_TRUE(gateway_.calls[1].text.kept_marks.empty()) << "content would show them";
}

TEST_F(ToolsTest, WithToolChoiceNoneNothingIsOfferedAndNothingParsed) {
  const auto exchange = Chat({{"tool_choice", "none"}});
  EXPECT_TRUE(std::get<ChatPrompt>(gateway_.calls[0].prompt).tools.IsUndefined());
  Finish(0, kCall);
  EXPECT_EQ(exchange->Body()["choices"][0]["message"]["content"], kCall);
  EXPECT_EQ(exchange->Body()["choices"][0]["finish_reason"], "stop");
}

TEST_F(ToolsTest, ParallelCallsMayBeForbidden) {
  const auto exchange = Chat({{"parallel_tool_calls", false}});
  Finish(0, std::string(kCall) + kCall);
  EXPECT_EQ(exchange->Body()["choices"][0]["message"]["tool_calls"].size(), 1u);
}

TEST_F(ToolsTest, MistralsIdsAreNineLettersAndDigits) {
  gateway_.format.tools = chat::ToolFormat::kMistral;
  const auto exchange = Chat();
  Finish(0, R"([TOOL_CALLS][{"name": "get", "arguments": {}}])");
  const Json call = exchange->Body()["choices"][0]["message"]["tool_calls"][0];
  EXPECT_EQ(call["id"].get<std::string>().size(), 9u);
}

TEST_F(ToolsTest, TheTemplateHearsToolsAsTheyWereWritten) {
  Send("POST", kChat,
       R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function",
           "function": {"parameters": {"required": [], "a": null}, "name": "f", "strict": null}}]})");
  jinja::Budget budget{jinja::RenderLimits()};
  const auto& chat = std::get<ChatPrompt>(gateway_.calls.at(0).prompt);
  const jinja::Text text = jinja::ToJson(chat.tools, {}, budget).value();
  EXPECT_EQ(text.bytes(), R"([{"type": "function", "function": )"
                          R"({"parameters": {"required": [], "a": null}, "name": "f"}}])");
  EXPECT_FALSE(text.client_ranges().empty()) << "what a client wrote becomes no special token";
}

TEST_F(ToolsTest, SchemasSayWhichArgumentsAreText) {
  gateway_.format.tools = chat::ToolFormat::kGlm;
  const std::pair<Json, std::string> cases[] = {
      {{{"type", "string"}}, R"("12")"},
      {{{"type", {"string", "null"}}}, R"("12")"},
      {{{"anyOf", {{{"type", "string"}}, {{"type", "null"}}}}}, R"("12")"},  // Pydantic's Optional.
      {{{"oneOf", {{{"type", "string"}}, {{"type", "null"}}}}}, R"("12")"},
      {{{"enum", {"12", "13"}}}, R"("12")"},
      {{{"const", "12"}}, R"("12")"},
      {{{"type", {"string", "integer"}}}, "12"},
      {{{"anyOf", {{{"type", "string"}}, {{"type", "integer"}}}}}, "12"},
      {{{"anyOf", {{{"type", "null"}}}}}, "12"},
      {{{"anyOf", 3}, {"type", 4}}, "12"},
      {{{"enum", {12}}}, "12"},
      {Json::object(), "12"},
  };
  for (const auto& [schema, value] : cases) {
    Json tool = Tool("get");
    tool["function"]["parameters"]["properties"]["a"] = schema;
    const auto exchange = Chat({{"tools", {tool}}});
    Finish(gateway_.sinks.size() - 1,
           "<tool_call>get<arg_key>a</arg_key><arg_value>12</arg_value></tool_call>");
    const Json call = exchange->Body()["choices"][0]["message"]["tool_calls"][0];
    EXPECT_EQ(call["function"]["arguments"], R"({"a": )" + value + "}") << schema;
  }
}

TEST_F(ToolsTest, TakesToolsAndMessagesAsOtherServersKnowThem) {
  Json tool = Tool("get");
  tool["cache_control"] = {{"type", "ephemeral"}};
  tool["function"]["cache_control"] = tool["cache_control"];
  tool["function"]["return"] = {{"type", "string"}};
  Chat({{"tools", {tool}},
        {"messages",
         {{{"role", "user"}, {"content", "x"}, {"cache_control", tool["cache_control"]}},
          {{"role", "assistant"},
           {"content", "y"},
           {"provider_specific_fields", {{"refusal", nullptr}}},
           {"thinking_blocks", Json::array()}}}}});
  ASSERT_EQ(gateway_.calls.size(), 1u);
  jinja::Budget budget{jinja::RenderLimits()};
  const auto& chat = std::get<ChatPrompt>(gateway_.calls[0].prompt);
  const Json shown = Json::parse(jinja::ToJson(chat.tools, {}, budget).value().bytes());
  tool.erase("cache_control");
  tool["function"].erase("cache_control");
  EXPECT_EQ(shown, Json::array({tool})) << "the model hears what a tool is, and no hints";
}

TEST_F(ToolsTest, AToolMayReturnNothing) {
  Chat({{"messages",
         {{{"role", "tool"}, {"tool_call_id", "a"}, {"content", nullptr}},
          {{"role", "tool"}, {"tool_call_id", "b"}, {"content", Json::array()}}}}});
  const auto& chat = std::get<ChatPrompt>(gateway_.calls.at(0).prompt);
  EXPECT_EQ(chat.messages[0].content, "");
  EXPECT_EQ(chat.messages[1].content, "");
  EXPECT_EQ(ErrorOf(kChat, Request({{"messages", {{{"role", "user"}}}}}).dump())["param"],
            "messages[0].content");
}

TEST_F(ToolsTest, RefusesWithTheFieldNamed) {
  Json many = Json::array();
  for (int i = 0; i < 129; ++i) many.push_back(Tool("f" + std::to_string(i)));
  Json large = Tool("get");
  large["function"]["description"] = std::string(1 << 20, 'x');
  const std::pair<Json, std::string> cases[] = {
      {{{"tools", 3}}, "tools"},
      {{{"tools", {3}}}, "tools[0]"},
      {{{"tools", {Json::object()}}}, "tools[0].function"},
      {{{"tools", {{{"type", "web_search"}}}}}, "tools[0].type"},
      {{{"tools", {Tool("a b")}}}, "tools[0].function.name"},
      {{{"tools", {Tool(std::string(65, 'a'))}}}, "tools[0].function.name"},
      {{{"tools", {Tool("f"), Tool("f")}}}, "tools[1].function.name"},
      {{{"tools", {{{"function", {{"name", "f"}, {"parameters", "x"}}}}}}},
       "tools[0].function.parameters"},
      {{{"tools", {{{"function", {{"name", "f"}, {"colour", 1}}}}}}}, "tools[0].function.colour"},
      {{{"tools", many}}, "tools"},
      {{{"tools", {large}}}, "tools"},
      {{{"tool_choice", "always"}}, "tool_choice"},
      {{{"tool_choice", {{"type", "function"}, {"function", {{"name", "set"}}}}}}, "tool_choice"},
      {{{"tool_choice", {{"type", "function"}}}}, "tool_choice"},
      {{{"tool_choice", "required"}, {"response_format", {{"type", "json_object"}}}},
       "tool_choice"},
      {{{"tools", nullptr}, {"tool_choice", "required"}}, "tool_choice"},
      {{{"parallel_tool_calls", "no"}}, "parallel_tool_calls"},
      {{{"reasoning_effort", 3}}, "reasoning_effort"},
      {{{"functions", {Json::object()}}}, "functions"},
  };
  for (const auto& [more, field] : cases) {
    const Json error = ErrorOf(kChat, Request(more).dump());
    EXPECT_EQ(error["param"], field) << error;
  }
  EXPECT_TRUE(gateway_.calls.empty());
}

TEST_F(ToolsTest, AnIntegerThatIsTooLargeIsNamed) {
  const std::string body = R"({"messages": [{"role": "user", "content": "x"}], "tools": [
      {"function": {"name": "f", "parameters": {"a": [1, {"maximum": 18446744073709551616}]}}}]})";
  EXPECT_EQ(ErrorOf(kChat, body)["param"], "tools[0].function.parameters.a[1].maximum");
}

TEST_F(ToolsTest, RefusesCallsInMessagesThatAreNone) {
  const auto param = [&](Json calls) {
    return ErrorOf(
        kChat,
        Json({{"messages", {{{"role", "assistant"}, {"tool_calls", calls}}}}}).dump())["param"];
  };
  EXPECT_EQ(param("x"), "messages[0].tool_calls");
  EXPECT_EQ(param({1}), "messages[0].tool_calls[0]");
  EXPECT_EQ(param({Json::object()}), "messages[0].tool_calls[0].function");
  EXPECT_EQ(param({{{"function", {{"name", 1}}}}}), "messages[0].tool_calls[0].function.name");
  EXPECT_EQ(param({{{"function", {{"name", "f"}, {"arguments", 1}}}}}),
            "messages[0].tool_calls[0].function.arguments");
}

TEST_F(ToolsTest, RefusesToolsThatTheModelCannotUse) {
  gateway_.format.tools = chat::ToolFormat::kNone;
  Json error = ErrorOf(kChat, Request().dump());
  EXPECT_EQ(error["param"], "tools");
  EXPECT_NE(error["message"].get<std::string>().find("--tool-call-parser"), std::string::npos);
  gateway_.format.template_takes_tools = false;
  error = ErrorOf(kChat, Request().dump());
  EXPECT_NE(error["message"].get<std::string>().find("chat template"), std::string::npos);
  Chat({{"tool_choice", "none"}});
  EXPECT_EQ(gateway_.calls.size(), 1u);
}

TEST_F(ToolsTest, ForcedAndStrictCallsAreConstrained) {
  Json tool = Tool("get");
  Chat({{"tools", {tool, Tool("now")}}});
  EXPECT_FALSE(gateway_.calls.at(0).sampling.has_structure());
  Chat({{"tools", {tool, Tool("now")}}, {"tool_choice", "required"}});
  const std::string forced = gateway_.calls.at(1).sampling.structure().ebnf();
  EXPECT_NE(forced.find("get"), std::string::npos);
  EXPECT_NE(forced.find("now"), std::string::npos);
  Chat({{"tools", {tool, Tool("now")}},
        {"tool_choice", {{"type", "function"}, {"function", {{"name", "get"}}}}}});
  const std::string named = gateway_.calls.at(2).sampling.structure().ebnf();
  EXPECT_EQ(named.find("now"), std::string::npos);
  tool["function"]["strict"] = true;
  Chat({{"tools", {tool}}});
  EXPECT_TRUE(gateway_.calls.at(3).sampling.has_structure());
  EXPECT_TRUE(gateway_.calls.at(3).warnings.empty());
  // Where no mark tells that a call begins, strictness is a wish.
  gateway_.format.tools = chat::ToolFormat::kLlama3;
  Chat({{"tools", {tool}}});
  EXPECT_FALSE(gateway_.calls.at(4).sampling.has_structure());
  EXPECT_EQ(gateway_.calls.at(4).warnings.size(), 1u);
}

}  // namespace
}  // namespace baton::router
