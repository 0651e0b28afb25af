#include "services/router/http/openai_request.h"

#include <map>

#include "common/base/status.h"
#include "common/tokenizer/chat/jinja/json.h"
#include "services/router/http/testing/handler_fixture.h"

namespace baton::router {
namespace {

class OpenAiRequestTest : public HandlerFixture {};

TEST_F(OpenAiRequestTest, ReadsEveryFieldOfACompletion) {
  Send("POST", "/v1/completions", R"({"model":"tiny","prompt":[1,2,3],"temperature":0.5,"top_k":4,
      "top_p":0.9,"min_p":0.1,"seed":-1,"stop":["a","b"],"stop_token_ids":[7],"ignore_eos":true,
      "max_tokens":9,"min_tokens":2,"logprobs":3,"n":1,"user":"x","echo":false,"suffix":null})");
  ASSERT_EQ(gateway_.calls.size(), 1u);
  const GenerateCall& call = gateway_.calls[0];
  EXPECT_EQ(std::get<TokenIdsPrompt>(call.prompt), (TokenIdsPrompt{1, 2, 3}));
  EXPECT_FLOAT_EQ(call.sampling.temperature(), 0.5);
  EXPECT_EQ(call.sampling.top_k(), 4);
  EXPECT_EQ(call.sampling.seed(), ~uint64_t{0});
  ASSERT_EQ(call.sampling.stop_size(), 2);
  EXPECT_EQ(call.sampling.stop(0) + call.sampling.stop(1), "ab");
  ASSERT_EQ(call.sampling.stop_token_ids_size(), 1);
  EXPECT_EQ(call.sampling.stop_token_ids(0), 7);
  EXPECT_TRUE(call.sampling.ignore_eos());
  EXPECT_EQ(call.sampling.max_tokens(), 9);
  EXPECT_EQ(call.sampling.min_tokens(), 2);
  EXPECT_TRUE(call.sampling.logprobs());
  EXPECT_EQ(call.sampling.top_logprobs(), 3);
}

TEST_F(OpenAiRequestTest, ReadsAChatWithTextParts) {
  Send("POST", "/v1/chat/completions", R"({"messages":[{"role":"system","content":"s"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
      "max_completion_tokens":5,"logprobs":true,"top_logprobs":2})");
  ASSERT_EQ(gateway_.calls.size(), 1u);
  const auto& chat = std::get<ChatPrompt>(gateway_.calls[0].prompt);
  ASSERT_EQ(chat.messages.size(), 2u);
  EXPECT_EQ(chat.messages[1].content, "a\nb");
  EXPECT_EQ(gateway_.calls[0].sampling.max_tokens(), 5);
  EXPECT_EQ(gateway_.calls[0].names.max_tokens, "max_completion_tokens");
}

TEST_F(OpenAiRequestTest, RefusesBodiesThatAreNoJsonObject) {
  for (const std::string body : {"", "{", "[]", "{\"prompt\":NaN}", "{\"prompt\":\"\xff\"}",
                                 "{\"prompt\":\"\\ud800\"}", "{\"temperature\":1e999}", "null"}) {
    const Json error = ErrorOf("/v1/completions", body);
    EXPECT_NE(error["message"].get<std::string>().find("JSON"), std::string::npos) << body;
  }
  ErrorOf("/v1/completions", std::string(100000, '['));
}

TEST_F(OpenAiRequestTest, ReadsPenaltiesAndTextOptions) {
  Complete({{"prompt", "a"},
            {"presence_penalty", 1},
            {"frequency_penalty", -0.5},
            {"repetition_penalty", 1.5},
            {"logit_bias", {{"7", -100}, {"9", 2.5}}},
            {"skip_special_tokens", false},
            {"include_stop_str_in_output", true},
            {"truncate_prompt_tokens", -1},
            {"add_special_tokens", false},
            {"top_k", -1},
            {"timeout", 1.5}});
  ASSERT_EQ(gateway_.calls.size(), 1u);
  const GenerateCall& call = gateway_.calls[0];
  EXPECT_EQ(call.sampling.presence_penalty(), 1);
  EXPECT_FLOAT_EQ(call.sampling.frequency_penalty(), -0.5);
  EXPECT_FLOAT_EQ(call.sampling.repetition_penalty(), 1.5);
  ASSERT_EQ(call.sampling.logit_bias_size(), 2);
  EXPECT_EQ(call.sampling.logit_bias(0).token_id(), 7);
  EXPECT_EQ(call.sampling.logit_bias(0).bias(), -100);
  EXPECT_EQ(call.sampling.logit_bias(1).bias(), 2.5F);
  EXPECT_FALSE(call.text.skip_special_tokens);
  EXPECT_TRUE(call.text.include_stop);
  EXPECT_EQ(call.truncate_prompt_tokens, -1);
  EXPECT_FALSE(call.add_special_tokens);
  EXPECT_EQ(call.sampling.top_k(), -1);
  EXPECT_EQ(call.timeout_ms, 1500);
}

TEST_F(OpenAiRequestTest, SeedsHave64Bits) {
  for (const auto& [text, seed] :
       std::map<std::string, uint64_t>{{"18446744073709551615", ~uint64_t{0}},
                                       {"9223372036854775808", uint64_t{1} << 63},
                                       {"-1", ~uint64_t{0}},
                                       {"0", 0}}) {
    Send("POST", "/v1/completions", R"({"prompt":"a","seed":)" + text + "}");
    EXPECT_EQ(gateway_.calls.back().sampling.seed(), seed) << text;
  }
  for (const std::string bad : {"18446744073709551616", "1.5", "\"7\""}) {
    EXPECT_EQ(ErrorOf("/v1/completions", R"({"prompt":"a","seed":)" + bad + "}")["param"], "seed");
  }
}

TEST_F(OpenAiRequestTest, OtherServersSpellingsAreRead) {
  Complete({{"prompt", "a"},
            {"max_new_tokens", 7},
            {"min_new_tokens", 2},
            {"sampling_seed", 5},
            {"no_stop_trim", true}});
  ASSERT_EQ(gateway_.calls.size(), 1u);
  EXPECT_EQ(gateway_.calls[0].sampling.max_tokens(), 7);
  EXPECT_EQ(gateway_.calls[0].names.max_tokens, "max_new_tokens");
  EXPECT_EQ(gateway_.calls[0].sampling.min_tokens(), 2);
  EXPECT_EQ(gateway_.calls[0].sampling.seed(), 5u);
  EXPECT_TRUE(gateway_.calls[0].text.include_stop);
  Complete({{"prompt", "a"}, {"max_tokens", 4}, {"max_completion_tokens", 4}});
  EXPECT_EQ(gateway_.calls.back().sampling.max_tokens(), 4) << "guidellm sends both";
  EXPECT_EQ(ErrorOf("/v1/completions",
                    R"({"prompt":"a","max_tokens":4,"max_completion_tokens":5})")["param"],
            "max_completion_tokens");
}

TEST_F(OpenAiRequestTest, TheShorterTimeoutWins) {
  const auto timeout_of = [&](const std::string& body, const std::string& header) {
    Send("POST", "/v1/completions", body, {{"x-request-timeout", header}});
    return gateway_.calls.back().timeout_ms;
  };
  EXPECT_EQ(timeout_of(R"({"prompt":"a"})", "2.5"), 2500);
  EXPECT_EQ(timeout_of(R"({"prompt":"a","timeout":1})", "2.5"), 1000);
  EXPECT_EQ(timeout_of(R"({"prompt":"a","timeout":9})", "2.5"), 2500);
  EXPECT_EQ(timeout_of(R"({"prompt":"a","timeout":1e300})", "1e301"), 1'000'000'000'000);
  const size_t before = gateway_.calls.size();
  EXPECT_EQ(ErrorOf("/v1/completions", R"({"prompt":"a","timeout":0})")["param"], "timeout");
  for (const std::string bad : {"soon", "-1", "nan", "inf"}) {
    Send("POST", "/v1/completions", R"({"prompt":"a"})", {{"x-request-timeout", bad}});
  }
  EXPECT_EQ(gateway_.calls.size(), before);
}

TEST_F(OpenAiRequestTest, ReadsChatsAsClientsSendThem) {
  Post("/v1/chat/completions", {{"messages",
                                 {{{"role", "developer"}, {"content", "rules"}},
                                  {{"role", "user"}, {"content", "hi"}, {"name", "ann"}},
                                  {{"role", "assistant"},
                                   {"content", nullptr},
                                   {"refusal", nullptr},
                                   {"tool_calls", Json::array()}},
                                  {{"role", "user"}, {"content", "go on"}}}},
                                {"add_generation_prompt", false}});
  ASSERT_EQ(gateway_.calls.size(), 1u);
  const auto& chat = std::get<ChatPrompt>(gateway_.calls[0].prompt);
  ASSERT_EQ(chat.messages.size(), 4u);
  EXPECT_EQ(chat.messages[0].role, "developer");
  EXPECT_EQ(chat.messages[2].content, "");
  EXPECT_FALSE(chat.add_generation_prompt);
}

TEST_F(OpenAiRequestTest, ReadsWhatTheChatTemplateHears) {
  Send(
      "POST", "/v1/chat/completions",
      R"({"seed": 18446744073709551615, "chat_template_kwargs": {"z": 1, "a": {"y": [true], "b": null}},
           "continue_final_message": true,
           "messages": [{"zeta": null, "role": "tool", "tool_call_id": "c1", "content": "4"},
                        {"tool_calls": [{"id": "c2", "function": {"name": "f"}}],
                         "role": "assistant", "reasoning_content": "r"}]})");
  ASSERT_EQ(gateway_.calls.size(), 1u);
  const auto& chat = std::get<ChatPrompt>(gateway_.calls[0].prompt);
  EXPECT_FALSE(chat.add_generation_prompt);
  EXPECT_TRUE(chat.continue_final_message);
  const auto text = [](const jinja::Value& value) {
    jinja::Budget budget{jinja::RenderLimits()};
    return jinja::ToJson(value, {}, budget).value();
  };
  // In the client's order, without what says nothing; every string is the client's.
  EXPECT_EQ(text(chat.variables).bytes(), R"({"z": 1, "a": {"y": [true], "b": null}})");
  const jinja::Text tool = text(chat.messages[0].fields);
  EXPECT_EQ(tool.bytes(), R"({"role": "tool", "tool_call_id": "c1", "content": "4"})");
  EXPECT_EQ(tool.client_ranges().size(), 6u);
  EXPECT_EQ(text(chat.messages[1].fields).bytes(),
            R"({"tool_calls": [{"id": "c2", "function": {"name": "f"}}], )"
            R"("role": "assistant", "reasoning_content": "r"})");
}

TEST_F(OpenAiRequestTest, RefusesWhatTheChatTemplateCannotHear) {
  const auto param = [&](const std::string& fields) {
    return ErrorOf("/v1/chat/completions",
                   R"({"messages":[{"role":"user","content":"x"}],)" + fields + "}")["param"];
  };
  for (const auto& [messages, got] :
       {std::pair("[]", "an empty list"), {"{}", "an empty object"}}) {
    const Json error =
        ErrorOf("/v1/chat/completions", absl::StrCat(R"({"messages":)", messages, "}"));
    EXPECT_EQ(error["message"],
              absl::StrCat("messages: must be a non-empty list of messages, got ", got));
  }
  EXPECT_EQ(param(R"("chat_template_kwargs":"x")"), "chat_template_kwargs");
  EXPECT_EQ(param(R"("chat_template_kwargs":{"messages":[]})"), "chat_template_kwargs.messages");
  EXPECT_EQ(param(R"("continue_final_message":true,"add_generation_prompt":true)"),
            "continue_final_message");
  EXPECT_EQ(param(R"("chat_template":"{{ 1 }}")"), "chat_template");
  for (const std::string field : {"\"enable_thinking\":false", "\"thinking\":{}"}) {
    const Json error = ErrorOf("/v1/chat/completions",
                               R"({"messages":[{"role":"user","content":"x"}],)" + field + "}");
    EXPECT_NE(error["message"].get<std::string>().find("chat_template_kwargs"), std::string::npos);
  }
}

TEST_F(OpenAiRequestTest, HarmlessFieldsAreTaken) {
  const auto exchange = Complete({{"prompt", "a"},
                                  {"user", "me"},
                                  {"metadata", {{"a", "b"}}},
                                  {"store", true},
                                  {"service_tier", "flex"},
                                  {"parallel_tool_calls", true},
                                  {"spaces_between_special_tokens", true},
                                  {"length_penalty", 1.0},
                                  {"suffix", nullptr},
                                  {"guided_json", nullptr},
                                  {"anything", nullptr},
                                  {"lora_path", nullptr}});
  EXPECT_EQ(gateway_.calls.size(), 1u) << exchange->response->body;
  Post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "x"}}}},
                                {"tools", Json::array()},
                                {"tool_choice", "auto"},
                                {"response_format", {{"type", "text"}}},
                                {"modalities", {"text"}}});
  EXPECT_EQ(gateway_.calls.size(), 2u);
}

TEST_F(OpenAiRequestTest, RefusesWithTheFieldNamed) {
  const std::vector<std::pair<std::string, std::string>> bodies = {
      {R"({"prompt":7})", "prompt"},
      {R"({"prompt":[1,"a"]})", "prompt"},
      {R"({"prompt":["a",1]})", "prompt"},
      {R"({"prompt":["a",[1]]})", "prompt"},
      {R"({"prompt":[[1],2]})", "prompt"},
      {R"({"prompt":"a","max_tokens":1.5})", "max_tokens"},
      {R"({"prompt":"a","max_tokens":18446744073709551615})", "max_tokens"},
      {R"({"prompt":"a","temperature":"hot"})", "temperature"},
      {R"({"prompt":"a","stop":5})", "stop"},
      {R"({"prompt":"a","n":0})", "n"},
      {R"({"prompt":"a","n":129})", "n"},
      {R"({"prompt":["a","b"],"n":65})", "n"},
      {R"({"prompt":"a","n":3,"best_of":2})", "best_of"},
      {R"({"prompt":"a","best_of":2,"stream":true})", "best_of"},
      {R"({"prompt":"a","logit_bias":[]})", "logit_bias"},
      {R"({"prompt":"a","logit_bias":{"x":2}})", "logit_bias"},
      {R"({"prompt":"a","logit_bias":{"1":"2"}})", "logit_bias"},
      {R"({"prompt":"a","suffix":"b"})", "suffix"},
      {R"({"prompt":"a","guided_choice":"a"})", "guided_choice"},
      {R"({"prompt":"a","guided_json":3})", "guided_json"},
      {R"({"prompt":"a","guided_regex":"a","ebnf":"b"})", "ebnf"},
      {R"({"prompt":"a","response_format":{"type":"xml"}})", "response_format.type"},
      {R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":{"name":"x"}}})",
       "response_format.json_schema.schema"},
      {R"({"prompt":"a","structured_outputs":{"tag":"x"}})", "structured_outputs.tag"},
      {R"({"prompt":"a","stop_regex":"a+"})", "stop_regex"},
      {R"({"prompt":"a","lora_path":"x"})", "lora_path"},
      {R"({"prompt":"a","prompt_logprobs":-1})", "prompt_logprobs"},
      {R"({"prompt":"a","prompt_logprobs":21})", "prompt_logprobs"},
      {R"({"prompt":"a","prompt_logprobs":true})", "prompt_logprobs"},
      {R"({"prompt":"a","prompt_logprobs":1,"stream":true})", "prompt_logprobs"},
      {R"({"prompt":"a","stream":1})", "stream"},
      {R"({"prompt":"a","stream_options":{"include_usage":true}})", "stream_options"},
      {R"({"prompt":"a","stream":true,"stream_options":{"usage":true}})", "stream_options.usage"},
  };
  for (const auto& [body, field] : bodies) {
    const Json error = ErrorOf("/v1/completions", body);
    EXPECT_EQ(error["param"], field) << body << error;
    EXPECT_EQ(error["type"], "invalid_request_error");
  }
  EXPECT_EQ(gateway_.refused, static_cast<int>(bodies.size()));
  EXPECT_TRUE(gateway_.calls.empty());
}

TEST_F(OpenAiRequestTest, SaysWhatTheTextMustBe) {
  const auto asked = [&](const Json& more) {
    Json body = more;
    body["prompt"] = "a";
    Post("/v1/completions", body);
    return gateway_.calls.back().sampling.structure();
  };
  const auto asked_text = [&](const std::string& body) {
    Send("POST", "/v1/completions", body);
    return gateway_.calls.back().sampling.structure();
  };
  EXPECT_EQ(asked({{"response_format", {{"type", "text"}}}}).kind_case(),
            v1::TextStructure::KIND_NOT_SET);
  EXPECT_EQ(asked({{"response_format", {{"type", "json_object"}}}}).json_schema(),
            R"({"type": "object"})");
  // In the order in which the client wrote it.
  EXPECT_EQ(asked_text(R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":)"
                       R"({"name":"n","strict":true,"schema":{"z":1,"a":[2]}}}})")
                .json_schema(),
            R"({"z": 1, "a": [2]})");
  EXPECT_EQ(asked_text(R"({"prompt":"a","guided_json":{"z":1,"a":2}})").json_schema(),
            R"({"z": 1, "a": 2})");
  EXPECT_EQ(asked({{"json_schema", "{}"}}).json_schema(), "{}");
  EXPECT_EQ(asked({{"guided_regex", "a+"}}).regex(), "a+");
  EXPECT_EQ(asked({{"regex", "b"}}).regex(), "b");
  EXPECT_EQ(asked({{"guided_grammar", "x"}}).ebnf(), "x");
  EXPECT_EQ(asked({{"ebnf", "y"}}).ebnf(), "y");
  EXPECT_EQ(asked({{"guided_choice", {"a", "b"}}}).choice().texts_size(), 2);
  EXPECT_EQ(asked({{"structured_outputs", {{"regex", "c"}}}}).regex(), "c");
}

TEST_F(OpenAiRequestTest, NumbersThatFitNoFieldAreRefusedInTheClientsWords) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {R"("top_k": 2147483648)", "top_k", "must be from -1 to 2147483647, is 2147483648"},
      {R"("max_completion_tokens": 1e15)", "max_completion_tokens", "must be an integer"},
      {R"("max_completion_tokens": 1099511627776)", "max_completion_tokens",
       "must be from 0 to 2147483647, is 1099511627776"},
      {R"("max_tokens": -1)", "max_tokens", "must be from 0 to 2147483647, is -1"},
      {R"("min_tokens": -9223372036854775808)", "min_tokens", "must be from 0"},
      {R"("logprobs": true, "top_logprobs": 4294967297)", "top_logprobs", "must be from 0 to 20"},
      {R"("stop_token_ids": [4294967296])", "stop_token_ids", "outside the vocabulary"},
      {R"("logit_bias": {"4294967297": 1})", "logit_bias", "outside the vocabulary"}};
  for (const auto& [field, name, words] : cases) {
    const Json error =
        ErrorOf("/v1/chat/completions",
                std::string(R"({"messages":[{"role":"user","content":"x"}], )") + field + "}");
    EXPECT_EQ(error["param"], name) << error;
    EXPECT_NE(error["message"].get<std::string>().find(words), std::string::npos) << error;
  }
  // What is greater than 0 stays so as a float.
  Send("POST", "/v1/completions", R"({"prompt": "a", "top_p": 1e-60})");
  EXPECT_GT(gateway_.calls.back().sampling.top_p(), 0);
}

TEST_F(OpenAiRequestTest, UnknownFieldsAreRefusedWithTheNearestName) {
  const auto message = [&](const std::string& body) {
    return ErrorOf("/v1/completions", body)["message"].get<std::string>();
  };
  EXPECT_EQ(message(R"({"prompt":"a","temprature":1})"),
            "temprature: is not a field of /v1/completions (did you mean 'temperature'?)");
  EXPECT_EQ(message(R"({"prompt":"a","zzzzzz":1})"), "zzzzzz: is not a field of /v1/completions");
  const Json error = ErrorOf("/v1/chat/completions",
                             R"({"messages":[{"role":"user","content":"x","contnt":"y"}]})");
  EXPECT_EQ(error["param"], "messages[0].contnt");
  EXPECT_NE(error["message"].get<std::string>().find("'content'"), std::string::npos);
}

TEST_F(OpenAiRequestTest, UnknownFieldsAreIgnoredIfTheServerSaysSo) {
  options_.set_unknown_fields("ignore");
  Complete({{"prompt", "a"}, {"temprature", 1}});
  ASSERT_EQ(gateway_.calls.size(), 1u);
  ASSERT_EQ(gateway_.calls[0].warnings.size(), 1u);
  Outcome outcome = Finished(FinishReason::kStop);
  outcome.warnings = gateway_.calls[0].warnings;
  const auto exchange = Complete({{"prompt", "a"}});
  gateway_.sinks[1]->OnFinished(outcome);
  EXPECT_EQ(exchange->Body()["warnings"].size(), 1u);
  ErrorOf("/v1/completions", R"({"prompt":"a","lora_path":"x"})");  // Would change the answer.
}

}  // namespace
}  // namespace baton::router
