// Anthropic's Messages: what a request becomes, what its answer and its stream say, errors.
#include <tuple>

#include "common/base/status.h"
#include "services/router/core/context_overflow.h"
#include "services/router/http/testing/agent_fixture.h"

namespace baton::router {
namespace {

constexpr char kPath[] = "/v1/messages";
constexpr char kCall[] =
    R"(<tool_call>{"name": "get", "arguments": {"z": 1, "a":  "Ulm"}}</tool_call>)";

class MessagesTest : public AgentFixture {
 protected:
  static Json Request(const Json& more = Json::object()) {
    Json body = {{"model", "tiny"},
                 {"max_tokens", 50},
                 {"messages", {{{"role", "user"}, {"content", "x"}}}}};
    if (more.is_object()) body.update(more);
    return body;
  }
  static Json Tool(const std::string& name) {
    return {{"name", name}, {"input_schema", {{"type", "object"}}}};
  }
  static Json Thinking() { return {{"type", "enabled"}, {"budget_tokens", 20}}; }
  static Json User(const Json& blocks) { return {{"role", "user"}, {"content", blocks}}; }
  static Json Assistant(const Json& blocks) { return {{"role", "assistant"}, {"content", blocks}}; }

  std::shared_ptr<FakeExchange> Ask(const Json& more = Json::object()) {
    return Post(kPath, Request(more));
  }
  Json Heard(const Json& more) { return HeardOf(*Ask(more)); }
  Json Error(const Json& more, int status = 400) {
    const auto exchange = Ask(more);
    EXPECT_TRUE(exchange->response.has_value()) << more;
    if (!exchange->response.has_value()) return Json::object();
    EXPECT_EQ(exchange->response->status, status) << more;
    EXPECT_EQ(exchange->Body()["type"], "error");
    return exchange->Body()["error"];
  }
  static std::vector<Json> Events(const FakeExchange& exchange) { return NamedEvents(exchange); }
};

TEST_F(MessagesTest, AnAnswerHasBlocksInTheirOrder) {
  const auto exchange = Ask({{"tools", {Tool("get")}}, {"thinking", Thinking()}});
  Outcome outcome = Finished(FinishReason::kStop);
  outcome.usage.set_prompt_tokens(9);
  outcome.usage.set_cached_tokens(4);
  outcome.usage.set_completion_tokens(30);
  Finish(std::string("<think>Hm.</think>Let me look.\n") + kCall, outcome);
  const Json answer = exchange->Body();
  EXPECT_EQ(answer["type"], "message");
  EXPECT_EQ(answer["role"], "assistant");
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(answer["stop_reason"], "tool_use");
  EXPECT_TRUE(answer["stop_sequence"].is_null());
  const Json& blocks = answer["content"];
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0], Json({{"type", "thinking"}, {"thinking", "Hm."}, {"signature", ""}}));
  EXPECT_EQ(blocks[1], Json({{"type", "text"}, {"text", "Let me look."}}));
  EXPECT_EQ(blocks[2]["type"], "tool_use");
  EXPECT_EQ(blocks[2]["name"], "get");
  EXPECT_EQ(blocks[2]["input"], Json({{"z", 1}, {"a", "Ulm"}}));
  EXPECT_NE(exchange->response->body.find(R"("input":{"z": 1, "a":  "Ulm"})"), std::string::npos)
      << "keys stay in the model's order";
  const Json& usage = answer["usage"];
  EXPECT_EQ(usage["input_tokens"], 5);
  EXPECT_EQ(usage["cache_read_input_tokens"], 4);
  EXPECT_EQ(usage["output_tokens"], 30);
  EXPECT_EQ(usage["output_tokens_details"]["thinking_tokens"], 18) << "<think>Hm.</think>";
}

TEST_F(MessagesTest, SaysWhyItStopped) {
  const auto reason = [&](FinishReason finish, const std::string& matched) {
    const auto exchange = Ask({{"stop_sequences", {"END"}}});
    Outcome outcome = Finished(finish);
    outcome.matched_stop = matched;
    Finish("a", outcome);
    return Json{exchange->Body()["stop_reason"], exchange->Body()["stop_sequence"]};
  };
  EXPECT_EQ(reason(FinishReason::kStop, ""), (Json{"end_turn", nullptr}));
  EXPECT_EQ(reason(FinishReason::kStop, "END"), (Json{"stop_sequence", "END"}));
  EXPECT_EQ(reason(FinishReason::kLength, ""), (Json{"max_tokens", nullptr}));
  ASSERT_EQ(gateway_.calls[0].sampling.stop_size(), 1);
  EXPECT_EQ(gateway_.calls[0].sampling.stop(0), "END");
  const auto aborted = Ask();
  Finish("a", Finished(FinishReason::kAbort));
  EXPECT_EQ(aborted->response->status, 499);
}

TEST_F(MessagesTest, AStreamHasAnthropicsEvents) {
  const auto exchange =
      Ask({{"stream", true}, {"tools", {Tool("get")}}, {"thinking", {{"type", "adaptive"}}}});
  Finish(std::string("<think>Hm.</think>Ah") + kCall);
  EXPECT_TRUE(exchange->ended);
  std::string types;
  std::string texts[3];
  for (const Json& event : Events(*exchange)) {
    const std::string type = event["type"];
    if (type != "content_block_delta") {
      types += type + " ";
      continue;
    }
    const Json& delta = event["delta"];
    const size_t index = event["index"];
    texts[index] += delta["type"].get<std::string>().substr(0, 3) + ":";
    texts[index] += delta.contains("text")       ? delta["text"].get<std::string>()
                    : delta.contains("thinking") ? delta["thinking"].get<std::string>()
                                                 : delta["partial_json"].get<std::string>();
  }
  EXPECT_EQ(types,
            "message_start ping content_block_start content_block_stop content_block_start "
            "content_block_stop content_block_start content_block_stop message_delta "
            "message_stop ");
  EXPECT_EQ(texts[0], "thi:Hthi:mthi:.");
  EXPECT_EQ(texts[1], "tex:Atex:h");
  EXPECT_EQ(texts[2], R"(inp:{"z": 1, "a":  "Ulm"})");
  const std::vector<Json> events = Events(*exchange);
  const Json& message = events[0]["message"];
  EXPECT_EQ(message["content"], Json::array());
  EXPECT_EQ(message["usage"]["input_tokens"], 5) << "userx";
  const Json& last = events[events.size() - 2];
  EXPECT_EQ(last["delta"], Json({{"stop_reason", "tool_use"}, {"stop_sequence", nullptr}}));
  EXPECT_EQ(last["usage"]["output_tokens"], 2);
  const auto begun = std::find_if(events.begin(), events.end(), [](const Json& event) {
    return event["type"] == "content_block_start" && event["index"] == 2;
  });
  EXPECT_EQ((*begun)["content_block"]["input"], Json::object());
}

TEST_F(MessagesTest, AnAnswerMayBeEmpty) {
  const auto exchange = Ask();
  Finish("");
  EXPECT_EQ(exchange->Body()["content"], Json::array());
}

TEST_F(MessagesTest, ThinkingIsTurnedOnAndOff) {
  const auto variables = [&](const Json& more) {
    Ask(more);
    return Shown(gateway_.encoded_chat.variables);
  };
  const Json off = {{"enable_thinking", false}, {"thinking", false}};
  EXPECT_EQ(variables({}), off);
  EXPECT_EQ(variables({{"thinking", {{"type", "disabled"}}}}), off);
  EXPECT_EQ(variables({{"thinking", Thinking()}}),
            Json({{"enable_thinking", true}, {"thinking", true}, {"thinking_budget", 20}}));
  EXPECT_EQ(gateway_.calls.back().sampling.structure().reasoning_budget(), 20);
  EXPECT_EQ(variables({{"chat_template_kwargs", {{"thinking", 1}}}}),
            Json({{"enable_thinking", false}, {"thinking", 1}}));
  EXPECT_EQ(variables({{"output_config", {{"effort", "low"}}}})["reasoning_effort"], "low");
  for (const Json& thinking : {Json(), Json{{"type", "adaptive"}, {"display", "omitted"}}}) {
    const auto exchange = Ask({{"thinking", thinking}});
    Finish("<think>Hm.</think>Ah");
    EXPECT_EQ(exchange->Body()["content"], Json::array({{{"type", "text"}, {"text", "Ah"}}}));
  }
}

TEST_F(MessagesTest, AConversationBecomesAChat) {
  const Json thinking = {{"type", "thinking"}, {"thinking", "Hm."}, {"signature", "abc"}};
  const Json call = {
      {"type", "tool_use"}, {"id", "t1"}, {"name", "get"}, {"input", {{"city", "Ulm"}}}};
  const Json result = {{"type", "tool_result"},
                       {"tool_use_id", "t1"},
                       {"is_error", true},
                       {"content", {{{"type", "text"}, {"text", "no"}}}}};
  const Json text = {{"type", "text"}, {"text", "go"}, {"cache_control", {{"type", "ephemeral"}}}};
  const Json heard =
      Heard({{"system",
              {{{"type", "text"}, {"text", "x-anthropic-billing-header: cc=1"}},
               {{"type", "text"}, {"text", "S"}}}},
             {"messages",
              {User("x"), User(Json::array({text})), Assistant(Json::array({thinking, text, call})),
               User(Json::array({result, text}))}}});
  EXPECT_EQ(heard[0], Json({{"role", "system"}, {"content", "S"}}));
  EXPECT_EQ(heard[1]["role"], "user");
  EXPECT_EQ(heard[1]["content"],
            Json({{{"type", "text"}, {"text", "x"}}, {{"type", "text"}, {"text", "go"}}}));
  EXPECT_EQ(heard[2],
            Json({{"role", "assistant"},
                  {"content", "go"},
                  {"reasoning_content", "Hm."},
                  {"tool_calls",
                   {{{"id", "t1"},
                     {"type", "function"},
                     {"function", {{"name", "get"}, {"arguments", R"({"city": "Ulm"})"}}}}}}}));
  EXPECT_EQ(heard[3], Json({{"role", "tool"}, {"tool_call_id", "t1"}, {"content", "Error: no"}}));
  EXPECT_EQ(heard[4], Json({{"role", "user"}, {"content", "go"}}));
  EXPECT_EQ(heard.size(), 5u);
  EXPECT_TRUE(gateway_.encoded_chat.add_generation_prompt);
}

TEST_F(MessagesTest, ALastMessageOfTheAssistantIsGoneOnWith) {
  const Json heard = Heard({{"messages", {User("x"), Assistant("The answer is (")}}});
  EXPECT_EQ(heard[1]["content"], "The answer is (");
  EXPECT_TRUE(gateway_.encoded_chat.continue_final_message);
  EXPECT_FALSE(gateway_.encoded_chat.add_generation_prompt);
}

TEST_F(MessagesTest, TheTemplateHearsToolsAsChatsOfferThem) {
  Send("POST", kPath, R"({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}],
      "tools": [{"type": "custom", "input_schema": {"z": [1.5, null], "a": {}}, "name": "f",
                 "description": "d", "cache_control": {"type": "ephemeral"}}]})");
  jinja::Budget budget{jinja::RenderLimits()};
  EXPECT_EQ(jinja::ToJson(gateway_.encoded_chat.tools, {}, budget).value().bytes(),
            R"([{"type": "function", "function": {"name": "f", "description": "d", )"
            R"("parameters": {"z": [1.5, null], "a": {}}}}])");
  Ask({{"tools", {Tool("f")}}, {"tool_choice", {{"type", "none"}}}});
  EXPECT_TRUE(gateway_.encoded_chat.tools.IsUndefined());
}

TEST_F(MessagesTest, ParallelCallsMayBeForbidden) {
  const auto exchange =
      Ask({{"tools", {Tool("get")}},
           {"tool_choice", {{"type", "auto"}, {"disable_parallel_tool_use", true}}}});
  Finish(std::string(kCall) + kCall);
  EXPECT_EQ(exchange->Body()["content"].size(), 1u);
}

TEST_F(MessagesTest, SamplingIsReadAsInChats) {
  Ask({{"temperature", 0.5},
       {"top_p", 0.9},
       {"top_k", 40},
       {"seed", 7},
       {"metadata", {{"user_id", "u"}}},
       {"service_tier", "auto"}});
  const GenerateCall& call = gateway_.calls.at(0);
  EXPECT_EQ(call.endpoint, Endpoint::kMessages);
  EXPECT_FLOAT_EQ(call.sampling.temperature(), 0.5);
  EXPECT_FLOAT_EQ(call.sampling.top_p(), 0.9);
  EXPECT_EQ(call.sampling.top_k(), 40);
  EXPECT_EQ(call.sampling.seed(), 7u);
  EXPECT_EQ(call.sampling.max_tokens(), 50);
}

TEST_F(MessagesTest, TokensAreCounted) {
  Json body = Request({{"system", "S"}});
  body.erase("max_tokens");
  const auto exchange = Post("/v1/messages/count_tokens", body);
  EXPECT_EQ(exchange->Body(), Json({{"input_tokens", std::string("systemSuserx").size()}}));
  EXPECT_TRUE(gateway_.calls.empty());
  body["model"] = "other";
  EXPECT_EQ(Post("/v1/messages/count_tokens", body)->response->status, 404);
}

TEST_F(MessagesTest, RefusesWithTheFieldNamed) {
  const auto with = [](const Json& block) {
    return Json{{"messages", {User(Json::array({block}))}}};
  };
  const Json call = {{"type", "tool_use"}, {"id", "t"}, {"name", "f"}, {"input", Json::object()}};
  Json bad_name = call;
  bad_name["name"] = 3;
  const std::pair<Json, std::string> cases[] = {
      {{{"max_tokens", nullptr}}, "max_tokens: is required"},
      {{{"max_tokens", "9"}}, "max_tokens: must be an integer"},
      {{{"messages", Json::array()}}, "messages: "},
      {{{"messages", 3}}, "messages: "},
      {{{"messages", {3}}}, "messages[0]: "},
      {{{"messages", {{{"role", "system"}, {"content", "x"}}}}}, "messages[0].role: "},
      {{{"messages", {{{"role", "user"}}}}}, "messages[0].content: "},
      {{{"messages", {User(Json::array())}}}, "messages[0].content: "},
      {{{"messages", {User(Json::array({3}))}}}, "messages[0].content[0]: "},
      {with({{"type", "image"}, {"source", Json::object()}}), "messages[0].content[0].type: "},
      {with({{"type", "text"}, {"text", 3}}), "messages[0].content[0].text: "},
      {with({{"type", "text"}, {"text", "a"}, {"tex", 1}}), "messages[0].content[0].tex: "},
      {with(call), "messages[0].content[0].type: "},
      {with({{"type", "tool_result"}}), "messages[0].content[0].tool_use_id: "},
      {with({{"type", "tool_result"}, {"tool_use_id", "t"}, {"content", {{{"type", "image"}}}}}),
       "messages[0].content[0].content[0].type: "},
      {{{"messages", {User("x"), Assistant(Json::array({call}))}}}, "messages[1]: has a tool_use"},
      {{{"messages", {Assistant(Json::array({bad_name})), User("x")}}},
       "messages[0].content[0].name: "},
      {{{"system", 3}}, "system: "},
      {{{"system", {{{"type", "image"}}}}}, "system[0].type: "},
      {{{"stop_sequences", "x"}}, "stop_sequences: "},
      {{{"stop_sequences", {3}}}, "stop_sequences: "},
      {{{"tools", 3}}, "tools: "},
      {{{"tools", {{{"type", "web_search_20250305"}, {"name", "w"}}}}}, "tools[0].type: "},
      {{{"tools", {{{"name", "f"}}}}}, "tools[0].input_schema: "},
      {{{"tools", {Tool("a b")}}}, "tools[0].name: "},
      {{{"tools", {Tool("f"), Tool("f")}}}, "tools[1].name: "},
      {{{"tool_choice", {{"type", "always"}}}}, "tool_choice.type: "},
      {{{"tool_choice", {{"type", "tool"}}}}, "tool_choice.name: "},
      {{{"tool_choice", "auto"}}, "tool_choice: "},
      {{{"thinking", {{"type", "enabled"}}}}, "thinking.budget_tokens: "},
      {{{"thinking", {{"type", "enabled"}, {"budget_tokens", 50}}}}, "thinking.budget_tokens: "},
      {{{"thinking", {{"type", "perhaps"}}}}, "thinking.type: "},
      {{{"output_config", {{"effort", 3}}}}, "output_config.effort: "},
      {{{"output_config", {{"format", {{"type", "text"}}}}}}, "output_config.format.type: "},
      {{{"mcp_servers", {Json::object()}}}, "mcp_servers: "},
      {{{"temprature", 1}}, "temprature: is not a field of /v1/messages (did you mean"},
  };
  for (const auto& [more, beginning] : cases) {
    const Json error = Error(more);
    EXPECT_EQ(error["type"], "invalid_request_error") << more;
    EXPECT_TRUE(error["message"].get<std::string>().starts_with(beginning)) << error;
  }
  EXPECT_TRUE(gateway_.calls.empty());
}

// A call can be forced as soon as chats can.
TEST_F(MessagesTest, ForcedCallsAreRefusedInTheWordsOfChats) {
  const Json chat = Json::parse(
      R"({"messages": [{"role": "user", "content": "x"}], "tool_choice": "required",
          "tools": [{"type": "function", "function": {"name": "f"}}]})");
  const auto exchange = Post("/v1/chat/completions", chat);
  for (const Json& choice : {Json{{"type", "any"}}, Json{{"type", "tool"}, {"name", "f"}}}) {
    const auto message = Ask({{"tools", {Tool("f")}}, {"tool_choice", choice}});
    ASSERT_EQ(message->response.has_value(), exchange->response.has_value());
    if (!message->response.has_value()) continue;
    EXPECT_EQ(message->Body()["error"]["message"], exchange->Body()["error"]["message"]);
  }
}

TEST_F(MessagesTest, ErrorsHaveAnthropicsTypesAndStatuses) {
  const std::tuple<absl::Status, int, std::string> cases[] = {
      {Overloaded(absl::ResourceExhaustedError("full")), 529, "overloaded_error"},
      {absl::ResourceExhaustedError("too large"), 429, "rate_limit_error"},
      {absl::UnavailableError("no pair"), 503, "api_error"},
      {absl::DeadlineExceededError("late"), 504, "timeout_error"},
      {absl::InternalError("odd"), 500, "api_error"},
  };
  for (const auto& [status, http, type] : cases) {
    gateway_.refusal = status;
    EXPECT_EQ(Error({}, http)["type"], type);
  }
  gateway_.refusal = ContextOverflow("messages[0].content", "has 9 bytes");
  EXPECT_EQ(Error({{"system", "S"}})["message"], "prompt is too long: system: has 9 bytes");
  gateway_.refusal = absl::OkStatus();
  EXPECT_EQ(Error({{"model", 3}})["type"], "invalid_request_error");
}

TEST_F(MessagesTest, AStreamThatBreaksSaysSo) {
  const auto late = Ask({{"stream", true}});
  gateway_.sinks.back()->OnTokens({"a", {}});
  gateway_.sinks.back()->OnError(absl::UnavailableError("gone"));
  EXPECT_EQ(late->names.back(), "error");
  EXPECT_EQ(Json::parse(late->events.back())["error"]["type"], "api_error");
  EXPECT_TRUE(late->aborted);
  const auto soon = Ask({{"stream", true}});
  gateway_.sinks.back()->OnError(absl::UnavailableError("gone"));
  EXPECT_EQ(soon->response->status, 503);
  const auto held = Ask({{"stream", true}});
  held->streaming = true;  // The head has left with a comment.
  gateway_.sinks.back()->OnError(absl::UnavailableError("gone"));
  EXPECT_EQ(held->names, std::vector<std::string>{"error"});
  EXPECT_TRUE(held->ended);
}

TEST_F(MessagesTest, AKeyMayBeGivenAsAnthropicsClientsDo) {
  options_.set_api_key("secret");
  const std::string body = Request().dump();
  const auto refused = Send("POST", kPath, body, {{"x-api-key", "other"}});
  EXPECT_EQ(refused->response->status, 401);
  EXPECT_EQ(refused->Body()["error"]["type"], "authentication_error");
  for (const HttpHeaders& headers :
       {HttpHeaders{{"x-api-key", "secret"}, {"anthropic-version", "2023-06-01"}},
        HttpHeaders{{"Authorization", "Bearer secret"}}}) {
    EXPECT_FALSE(Send("POST", kPath, body, headers)->response.has_value());
  }
}

}  // namespace
}  // namespace baton::router
