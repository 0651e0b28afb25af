// OpenAI's Responses: what a request becomes, what the response and its events say, refusals.
#include "common/base/status.h"
#include "services/router/http/testing/agent_fixture.h"

namespace baton::router {
namespace {

constexpr char kPath[] = "/v1/responses";
constexpr char kCall[] =
    R"(<tool_call>{"name": "get", "arguments": {"z": 1, "a":  2}}</tool_call>)";

class ResponsesTest : public AgentFixture {
 protected:
  static Json Request(const Json& more) {
    Json body = {{"model", "tiny"}, {"input", "x"}};
    if (more.is_object()) body.update(more);
    return body;
  }
  static Json Tool(const std::string& name) {
    return {{"type", "function"},
            {"name", name},
            {"parameters", {{"type", "object"}}},
            {"strict", nullptr}};
  }
  std::shared_ptr<FakeExchange> Ask(const Json& more = Json::object()) {
    return Post(kPath, Request(more));
  }
  Json Heard(const Json& more) { return HeardOf(*Ask(more)); }
  // Their numbers are checked, too.
  static std::vector<Json> Events(const FakeExchange& exchange) {
    std::vector<Json> events = NamedEvents(exchange);
    for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i);
    return events;
  }
};

TEST_F(ResponsesTest, AResponseHasItemsInTheirOrder) {
  const auto exchange = Ask({{"tools", {Tool("get")}}, {"temperature", 0.5}, {"user", "me"}});
  Outcome outcome = Finished(FinishReason::kStop);
  outcome.usage.set_cached_tokens(1);
  outcome.usage.set_completion_tokens(30);
  Finish(std::string("<think>Hm.</think>Let me look.\n") + kCall, outcome);
  const Json response = exchange->Body();
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["store"], false);
  EXPECT_EQ(response["temperature"], 0.5);
  EXPECT_EQ(response["user"], "me");
  EXPECT_EQ(response["tools"], Json::array({Tool("get")}));
  EXPECT_TRUE(response["error"].is_null());
  const Json& output = response["output"];
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["content"], Json::array({{{"type", "reasoning_text"}, {"text", "Hm."}}}));
  EXPECT_EQ(output[0]["summary"], Json::array());
  EXPECT_EQ(output[1]["type"], "message");
  EXPECT_EQ(output[1]["content"][0]["type"], "output_text");
  EXPECT_EQ(output[1]["content"][0]["text"], "Let me look.");
  EXPECT_EQ(output[2]["type"], "function_call");
  EXPECT_EQ(output[2]["name"], "get");
  EXPECT_EQ(output[2]["arguments"], R"({"z": 1, "a":  2})");
  EXPECT_EQ(response["usage"],
            Json({{"input_tokens", 3},
                  {"input_tokens_details", {{"cached_tokens", 1}, {"cache_write_tokens", 0}}},
                  {"output_tokens", 30},
                  {"output_tokens_details", {{"reasoning_tokens", 18}}},
                  {"total_tokens", 33}}));
}

TEST_F(ResponsesTest, ACutOffAnswerIsIncomplete) {
  const auto exchange = Ask({{"max_output_tokens", 9}});
  EXPECT_EQ(gateway_.calls.at(0).sampling.max_tokens(), 9);
  Finish("a", Finished(FinishReason::kLength));
  EXPECT_EQ(exchange->Body()["status"], "incomplete");
  EXPECT_EQ(exchange->Body()["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(exchange->Body()["output"][0]["status"], "incomplete");
}

TEST_F(ResponsesTest, AStreamHasTypedEventsInOrder) {
  const auto exchange = Ask({{"stream", true}, {"tools", {Tool("get")}}});
  Finish(std::string("<think>Hm</think>A") + kCall);
  EXPECT_TRUE(exchange->ended);
  const std::vector<Json> events = Events(*exchange);
  std::string types;
  for (const Json& event : events) types += event["type"].get<std::string>() + "\n";
  EXPECT_EQ(types,
            "response.created\nresponse.in_progress\n"
            "response.output_item.added\nresponse.content_part.added\n"
            "response.reasoning_text.delta\nresponse.reasoning_text.delta\n"
            "response.reasoning_text.done\nresponse.content_part.done\n"
            "response.output_item.done\n"
            "response.output_item.added\nresponse.content_part.added\n"
            "response.output_text.delta\nresponse.output_text.done\n"
            "response.content_part.done\nresponse.output_item.done\n"
            "response.output_item.added\nresponse.function_call_arguments.delta\n"
            "response.function_call_arguments.done\nresponse.output_item.done\n"
            "response.completed\n");
  EXPECT_EQ(events[2]["item"]["content"], Json::array());
  EXPECT_EQ(events[2]["item"]["status"], "in_progress");
  EXPECT_EQ(events[6]["text"], "Hm");
  EXPECT_EQ(events[8]["item"]["content"][0]["text"], "Hm");
  EXPECT_EQ(events[11]["delta"], "A");
  EXPECT_EQ(events[11]["output_index"], 1);
  EXPECT_EQ(events[11]["item_id"], events[9]["item"]["id"]);
  EXPECT_EQ(events[15]["item"]["arguments"], "");
  EXPECT_EQ(events[16]["delta"], R"({"z": 1, "a":  2})");
  EXPECT_EQ(events[17]["name"], "get");
  const Json& last = events.back()["response"];
  EXPECT_EQ(last["id"], events[0]["response"]["id"]);
  EXPECT_EQ(last["output"].size(), 3u);
  for (const size_t done : {8, 14, 18}) {
    EXPECT_EQ(last["output"][events[done]["output_index"].get<size_t>()], events[done]["item"]);
  }
  EXPECT_EQ(last["usage"]["output_tokens"], 2);
}

TEST_F(ResponsesTest, AStreamSaysWhatCutItOff) {
  const auto cut = Ask({{"stream", true}});
  Finish("a", Finished(FinishReason::kLength));
  const std::vector<Json> events = Events(*cut);
  EXPECT_EQ(events.back()["type"], "response.incomplete");
  EXPECT_EQ(events[events.size() - 2]["item"]["status"], "incomplete");
  const auto late = Ask({{"stream", true}});
  gateway_.sinks.back()->OnTokens({"a", {}});
  gateway_.sinks.back()->OnError(absl::UnavailableError("gone"));
  EXPECT_EQ(Events(*late).back()["type"], "response.failed");
  EXPECT_EQ(Events(*late).back()["response"]["error"],
            Json({{"code", "server_error"}, {"message", "gone"}}));
  EXPECT_TRUE(late->aborted);
  const auto soon = Ask({{"stream", true}});
  gateway_.sinks.back()->OnError(absl::UnavailableError("gone"));
  EXPECT_EQ(soon->response->status, 503);
  const auto held = Ask({{"stream", true}});
  held->streaming = true;  // The head has left with a comment.
  gateway_.sinks.back()->OnError(absl::UnavailableError("gone"));
  EXPECT_EQ(Events(*held).back()["message"], "gone");
  const auto aborted = Ask();
  Finish("a", Finished(FinishReason::kAbort));
  EXPECT_EQ(aborted->response->status, 499);
}

TEST_F(ResponsesTest, ItemsBecomeAChat) {
  const Json call = {{"type", "function_call"},
                     {"id", "fc_1"},
                     {"call_id", "c1"},
                     {"name", "get"},
                     {"arguments", R"({"city": "Ulm"})"}};
  const Json heard = Heard(
      {{"instructions", "S"},
       {"input",
        {{{"role", "developer"}, {"content", "D"}},
         {{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "x"}}}}},
         {{"type", "reasoning"},
          {"id", "rs_1"},
          {"summary", Json::array()},
          {"content", {{{"type", "reasoning_text"}, {"text", "Hm."}}}}},
         {{"type", "message"},
          {"id", "msg_1"},
          {"role", "assistant"},
          {"status", "completed"},
          {"content", {{{"type", "output_text"}, {"text", "y"}, {"annotations", Json::array()}}}}},
         call,
         {{"type", "function_call_output"}, {"call_id", "c1"}, {"output", "4"}},
         {{"role", "user"}, {"content", "a"}},
         {{"role", "user"}, {"content", "b"}}}}});
  ASSERT_EQ(heard.size(), 7u) << heard;
  EXPECT_EQ(heard[0], Json({{"role", "system"}, {"content", "S"}}));
  EXPECT_EQ(heard[1], Json({{"role", "developer"}, {"content", "D"}}));
  EXPECT_EQ(heard[3]["content"], "y");
  EXPECT_EQ(heard[3]["reasoning_content"], "Hm.");
  EXPECT_EQ(heard[3]["tool_calls"][0]["function"]["arguments"], R"({"city": "Ulm"})");
  EXPECT_EQ(heard[4], Json({{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "4"}}));
  EXPECT_EQ(heard[6], Json({{"role", "user"}, {"content", "b"}}));
}

// What was answered may be sent back as it came.
TEST_F(ResponsesTest, AResponsesItemsAreInputOfTheNext) {
  const auto exchange = Ask({{"tools", {Tool("get")}}});
  Finish(std::string("<think>Hm.</think>Ah") + kCall);
  Json input = exchange->Body()["output"];
  const std::string id = input[2]["call_id"];
  input.push_back({{"type", "function_call_output"}, {"call_id", id}, {"output", "4"}});
  const Json heard = Heard({{"input", input}});
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_EQ(heard[0]["reasoning_content"], "Hm.");
  EXPECT_EQ(heard[0]["content"], "Ah");
  EXPECT_EQ(heard[0]["tool_calls"][0]["id"], id);
}

TEST_F(ResponsesTest, SettingsAreThoseOfChats) {
  Ask({{"top_p", 0.9},
       {"reasoning", {{"effort", "low"}, {"summary", "auto"}}},
       {"store", false},
       {"include", {"reasoning.encrypted_content"}},
       {"metadata", {{"a", "b"}}},
       {"text", {{"format", {{"type", "text"}}}, {"verbosity", "medium"}}},
       {"tools", {Tool("f")}},
       {"tool_choice", "none"}});
  const GenerateCall& call = gateway_.calls.at(0);
  EXPECT_EQ(call.endpoint, Endpoint::kResponses);
  EXPECT_FLOAT_EQ(call.sampling.top_p(), 0.9);
  EXPECT_EQ(Shown(gateway_.encoded_chat.variables)["reasoning_effort"], "low");
  EXPECT_TRUE(gateway_.encoded_chat.tools.IsUndefined());
  Ask({{"tools", {Tool("f")}}});
  EXPECT_EQ(Shown(gateway_.encoded_chat.tools), Json::parse(R"([{"type": "function", "function":
                            {"name": "f", "parameters": {"type": "object"}}}])"));
  const auto exchange = Ask({{"tools", {Tool("get")}}, {"parallel_tool_calls", false}});
  Finish(std::string(kCall) + kCall);
  EXPECT_EQ(exchange->Body()["output"].size(), 1u);
  EXPECT_EQ(exchange->Body()["parallel_tool_calls"], false);
}

TEST_F(ResponsesTest, TellsLogProbabilitiesOfItsTextAlone) {
  const auto piece = [](const std::string& text) {
    TokenPiece token = Token(text, -0.5F);
    return TextPiece{text, {token}};
  };
  const auto write = [&] {
    for (const char* text : {"<think>", "Hm.", "</think>", "Two", "."}) {
      gateway_.sinks.back()->OnTokens(piece(text));
    }
    gateway_.sinks.back()->OnFinished(Finished(FinishReason::kStop));
  };
  const auto exchange = Ask({{"include", {"message.output_text.logprobs"}}, {"top_logprobs", 2}});
  EXPECT_TRUE(gateway_.calls.back().sampling.logprobs());
  EXPECT_EQ(gateway_.calls.back().sampling.top_logprobs(), 2);
  write();
  const Json output = exchange->Body()["output"];
  ASSERT_EQ(output.size(), 2u) << output;
  const Json told = output[1]["content"][0]["logprobs"];
  // The token of the mark stands before the text, whose first it may have been.
  ASSERT_GE(told.size(), 2u) << told;
  EXPECT_EQ(told[told.size() - 2]["token"], "Two");
  EXPECT_EQ(told[told.size() - 1]["logprob"], -0.5);
  const auto streamed = Ask({{"include", {"message.output_text.logprobs"}}, {"stream", true}});
  write();
  Json deltas = Json::array();
  for (const Json& event : NamedEvents(*streamed)) {
    if (event["type"] != "response.output_text.delta") continue;
    for (const Json& token : event["logprobs"]) deltas.push_back(token);
  }
  EXPECT_EQ(deltas, told);
  Ask();
  EXPECT_FALSE(gateway_.calls.back().sampling.logprobs());
}

TEST_F(ResponsesTest, RefusesWithTheFieldNamed) {
  const auto item = [](const Json& one) { return Json{{"input", Json::array({one})}}; };
  const auto part = [&](const Json& one) {
    return item({{"role", "user"}, {"content", Json::array({one})}});
  };
  const std::pair<Json, std::string> cases[] = {
      {{{"input", nullptr}}, "input"},
      {{{"input", Json::array()}}, "input"},
      {{{"input", 3}}, "input"},
      {item(3), "input[0]"},
      {item({{"type", "item_reference"}, {"id", "x"}}), "input[0].type"},
      {item({{"type", "computer_call"}}), "input[0].type"},
      {item({{"role", "tool"}, {"content", "x"}}), "input[0].role"},
      {item({{"role", "user"}}), "input[0].content"},
      {item({{"role", "user"}, {"content", "x"}, {"colour", 1}}), "input[0].colour"},
      {part({{"type", "input_image"}, {"image_url", "x"}}), "input[0].content[0].type"},
      {part({{"type", "input_text"}}), "input[0].content[0].text"},
      {item({{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}}), "input[0].arguments"},
      {item({{"type", "function_call_output"}, {"output", "x"}}), "input[0].call_id"},
      {item({{"type", "reasoning"}, {"summary", Json::array()}, {"encrypted_content", "x"}}),
       "input[0].encrypted_content"},
      {{{"instructions", 3}}, "instructions"},
      {{{"store", true}}, "store"},
      {{{"previous_response_id", "resp_1"}}, "previous_response_id"},
      {{{"conversation", "c"}}, "conversation"},
      {{{"background", true}}, "background"},
      {{{"truncation", "auto"}}, "truncation"},
      {{{"max_tool_calls", 3}}, "max_tool_calls"},
      {{{"top_logprobs", "x"}}, "top_logprobs"},
      {{{"max_output_tokens", "x"}}, "max_output_tokens"},
      {{{"max_tokens", 3}}, "max_tokens"},
      {{{"tools", 3}}, "tools"},
      {{{"tools", {{{"type", "web_search"}}}}}, "tools[0].type"},
      {{{"tools", {Tool("a b")}}}, "tools[0].name"},
      {{{"tools", {{{"type", "function"}, {"name", "f"}, {"parameters", 3}}}}},
       "tools[0].parameters"},
      {{{"tool_choice", "always"}}, "tool_choice"},
      {{{"tool_choice", {{"type", "web_search"}}}}, "tool_choice.type"},
      {{{"reasoning", {{"effort", 3}}}}, "reasoning.effort"},
      {{{"text", {{"format", 3}}}}, "text.format"},
      {{{"text", {{"format", {{"type", "yaml"}}}}}}, "text.format"},
      {{{"temprature", 1}}, "temprature"},
  };
  for (const auto& [more, field] : cases) {
    const Json error = ErrorOf(kPath, Request(more).dump());
    const std::string param = error["param"].is_string() ? error["param"] : Json("");
    EXPECT_TRUE(param == field || (field == "text.format" && param.starts_with(field))) << error;
  }
  EXPECT_TRUE(gateway_.calls.empty());
}

// What chats can't do is refused in their words, and can be done here as soon as there.
TEST_F(ResponsesTest, ForcedCallsAndFormatsAreChats) {
  const Json messages = {{{"role", "user"}, {"content", "x"}}};
  const Json chat_tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  const Json schema = {{"type", "object"}};
  const std::pair<Json, Json> cases[] = {
      {{{"tools", chat_tools}, {"tool_choice", "required"}},
       {{"tools", {Tool("f")}}, {"tool_choice", "required"}}},
      {{{"tools", chat_tools},
        {"tool_choice", {{"type", "function"}, {"function", {{"name", "f"}}}}}},
       {{"tools", {Tool("f")}}, {"tool_choice", {{"type", "function"}, {"name", "f"}}}}},
      {{{"response_format", {{"type", "json_object"}}}},
       {{"text", {{"format", {{"type", "json_object"}}}}}}},
      {{{"response_format",
         {{"type", "json_schema"}, {"json_schema", {{"name", "a"}, {"schema", schema}}}}}},
       {{"text", {{"format", {{"type", "json_schema"}, {"name", "a"}, {"schema", schema}}}}}}},
  };
  for (const auto& [chat, more] : cases) {
    Json body = chat;
    body["messages"] = messages;
    const auto expected = Post("/v1/chat/completions", body);
    const auto exchange = Ask(more);
    ASSERT_EQ(exchange->response.has_value(), expected->response.has_value()) << more;
    if (!exchange->response.has_value()) continue;
    EXPECT_EQ(exchange->response->status, 400);
  }
}

TEST_F(ResponsesTest, WhatTheGatewayRefusesHasTheClientsNames) {
  gateway_.refusal = InvalidField("messages[0].content", "has ill-formed UTF-8");
  EXPECT_EQ(ErrorOf(kPath, Request({}).dump())["param"], "input");
  EXPECT_EQ(
      ErrorOf(kPath, Request({{"input", {{{"role", "user"}, {"content", "x"}}}}}).dump())["param"],
      "input[0]");
  gateway_.refusal = InvalidField("messages", "is too long");
  EXPECT_EQ(ErrorOf(kPath, Request({}).dump())["param"], "input");
}

}  // namespace
}  // namespace baton::router
