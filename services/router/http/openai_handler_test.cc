#include "services/router/http/openai_handler.h"

#include "common/base/status.h"
#include "services/router/http/testing/handler_fixture.h"
#include "services/router/validate.h"

namespace baton::router {
namespace {

class OpenAiHandlerTest : public HandlerFixture {};

TEST_F(OpenAiHandlerTest, StreamsOneEventPerStepAndTheUsage) {
  const auto exchange =
      Send("POST", "/v1/completions",
           R"({"prompt":"x","stream":true,"stream_options":{"include_usage":true}})");
  EXPECT_FALSE(exchange->streaming) << "the status is still open before the first token";
  gateway_.sinks[0]->OnTokens({"He", {Token("a", 0)}});
  gateway_.sinks[0]->OnTokens({"", {Token("b", 0)}});
  gateway_.sinks[0]->OnFinished(Finished(FinishReason::kLength, "y"));
  ASSERT_EQ(exchange->events.size(), 5u);
  EXPECT_EQ(Json::parse(exchange->events[0])["choices"][0]["text"], "He");
  EXPECT_EQ(Json::parse(exchange->events[2])["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(Json::parse(exchange->events[2])["choices"][0]["text"], "y");
  EXPECT_EQ(Json::parse(exchange->events[3])["usage"]["total_tokens"], 5);
  EXPECT_TRUE(Json::parse(exchange->events[3])["choices"].empty());
  EXPECT_EQ(exchange->events[4], "[DONE]");
  EXPECT_TRUE(exchange->ended);
}

TEST_F(OpenAiHandlerTest, AnErrorAfterTheFirstTokenNeverEndsTheStreamNormally) {
  const auto exchange = Send("POST", "/v1/chat/completions",
                             R"({"messages":[{"role":"user","content":"x"}],"stream":true})");
  gateway_.sinks[0]->OnTokens({"a", {}});
  gateway_.sinks[0]->OnError(absl::UnavailableError("decode-0 is lost"));
  EXPECT_EQ(Json::parse(exchange->events[0])["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(Json::parse(exchange->events.back())["error"]["message"], "decode-0 is lost");
  EXPECT_TRUE(exchange->aborted);
  EXPECT_FALSE(exchange->ended);
}

TEST_F(OpenAiHandlerTest, AnErrorBeforeTheFirstTokenHasItsStatus) {
  const auto exchange = Send("POST", "/v1/completions", R"({"prompt":"x","stream":true})");
  gateway_.sinks[0]->OnError(absl::ResourceExhaustedError("too many requests"));
  ASSERT_TRUE(exchange->response.has_value());
  EXPECT_EQ(exchange->response->status, 429);
  EXPECT_TRUE(exchange->events.empty());
}

TEST_F(OpenAiHandlerTest, LogprobsCarryTokensAndBytes) {
  const auto whole =
      Send("POST", "/v1/chat/completions",
           R"({"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":1})");
  TokenPiece token = Token("\xe2\x82", -0.5F);
  token.top = {{6, "b", -1.5F}};
  gateway_.sinks[0]->OnTokens({"", {token}});
  gateway_.sinks[0]->OnFinished(Finished(FinishReason::kStop, ""));
  const Json answer = Json::parse(whole->response->body);
  const Json& content = answer["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(content["bytes"], Json::array({0xe2, 0x82}));
  EXPECT_EQ(content["token"], "\xef\xbf\xbd");
  EXPECT_EQ(content["top_logprobs"][0]["token"], "b");
}

TEST_F(OpenAiHandlerTest, CancelsWhenTheClientLeaves) {
  const auto exchange = Send("POST", "/v1/completions", R"({"prompt":"x"})");
  ASSERT_TRUE(exchange->gone != nullptr);
  exchange->gone();
  EXPECT_EQ(gateway_.cancelled, std::vector<uint64_t>{1});
}

TEST_F(OpenAiHandlerTest, RoutesAndMethods) {
  EXPECT_EQ(Send("GET", "/v1/completions")->response->status, 405);
  EXPECT_EQ(Send("GET", "/v1/completions")->response->headers,
            (HttpHeaders{{"Allow", "OPTIONS, POST"}}));
  EXPECT_EQ(Send("OPTIONS", "/v1/completions")->response->status, 204);
  EXPECT_EQ(Send("GET", "/nowhere")->response->status, 404);
  EXPECT_EQ(Send("GET", "/health")->response->status, 200);
  const auto readiness = Send("GET", "/readiness");
  EXPECT_EQ(readiness->response->status, 503);
  EXPECT_NE(readiness->response->body.find("no decode service"), std::string::npos);
  EXPECT_EQ(Send("GET", "/metrics")->response->body, "# metrics");
  EXPECT_EQ(Json::parse(Send("GET", "/v1/models")->response->body)["data"][0]["id"], "tiny");
  EXPECT_EQ(Send("GET", "/v1/models/tiny")->response->status, 200);
  EXPECT_EQ(Send("GET", "/v1/models/other")->response->status, 404);
}

TEST_F(OpenAiHandlerTest, TheApiKeyGuardsTheApiButNotTheProbes) {
  options_.set_api_key("secret");
  EXPECT_EQ(Send("GET", "/v1/models")->response->status, 401);
  EXPECT_EQ(Send("GET", "/v1/models", "", {{"authorization", "Bearer secreT"}})->response->status,
            401);
  EXPECT_EQ(Send("GET", "/v1/models", "", {{"authorization", "Bearer secret"}})->response->status,
            200);
  for (const char* value : {"bearer secret", "BEARER  secret "}) {
    EXPECT_EQ(Send("GET", "/v1/models", "", {{"authorization", value}})->response->status, 200);
  }
  for (const char* value : {"Bearer", "Basic secret", "secret", "Bearersecret"}) {
    const auto refused = Send("GET", "/v1/models", "", {{"authorization", value}});
    EXPECT_EQ(refused->response->status, 401);
    EXPECT_EQ(refused->response->headers, (HttpHeaders{{"WWW-Authenticate", "Bearer"}}));
  }
  EXPECT_EQ(Send("GET", "/health")->response->status, 200);
}

TEST_F(OpenAiHandlerTest, AHeadersIdIsPartOfAnIdOfItsOwn) {
  const HttpHeaders header = {{"X-Request-Id", "client-1"}};  // What the fixture calls the first.
  (void)Send("POST", "/v1/completions", R"({"prompt":"x"})", header);
  EXPECT_TRUE(gateway_.calls.at(0).request_id.starts_with("cmpl-client-1-"));
  (void)Send("POST", "/v1/completions", R"({"prompt":"x","request_id":"mine"})",
             {{"X-Request-Id", "client-2"}});
  EXPECT_EQ(gateway_.calls.at(1).request_id, "mine");
}

TEST_F(OpenAiHandlerTest, AModelThatIsNotServedIsNotFoundEverywhere) {
  const auto code = [](const auto& exchange) {
    EXPECT_EQ(exchange->response->status, 404);
    return exchange->Body()["error"]["code"];
  };
  EXPECT_EQ(code(Send("GET", "/v1/models/other")), "model_not_found");
  EXPECT_EQ(code(Send("POST", "/tokenize", R"({"prompt":"x","model":"other"})")),
            "model_not_found");
}

TEST_F(OpenAiHandlerTest, SubmitsRefusalReachesTheClient) {
  gateway_.refusal = InvalidField("prompt", "is longer than the context");
  const Json error = ErrorOf("/v1/completions", R"({"prompt":"x"})");
  EXPECT_EQ(error["param"], "prompt");
}

TEST_F(OpenAiHandlerTest, LengthErrorsHaveOpenAisCode) {
  GenerateCall call;
  call.sampling.set_max_tokens(99);
  RequestLimits limits;
  limits.max_context_tokens = 10;
  gateway_.refusal = CheckContext(call, 5, limits);
  EXPECT_EQ(ErrorOf("/v1/completions", R"({"prompt":"x"})")["code"], "context_length_exceeded");
}

TEST_F(OpenAiHandlerTest, SaysWhatRuns) {
  options_.set_model_path("/models/tiny");
  options_.set_port(30000);
  EXPECT_EQ(Send("GET", "/version")->Body()["version"], "1.2");
  for (const char* path : {"/get_model_info", "/model_info"}) {
    const Json info = Send("GET", path)->Body();
    EXPECT_EQ(info["model_path"], "/models/tiny");
    EXPECT_EQ(info["is_generation"], true);
  }
  for (const char* path : {"/server_info", "/get_server_info"}) {
    const Json info = Send("GET", path)->Body();
    EXPECT_EQ(info["port"], 30000);
    EXPECT_EQ(info["served_model_name"], "tiny");
    EXPECT_EQ(info["internal_states"].size(), 1u);
  }
  const auto page = Send("GET", "/");
  EXPECT_TRUE(page->response->content_type.starts_with("text/html"));
  EXPECT_NE(page->response->body.find("Serves tiny"), std::string::npos);
  EXPECT_EQ(Send("POST", "/flush_cache")->response->status, 200);
  EXPECT_NE(Send("GET", "/flush_cache")->response->body.find("3 pages"), std::string::npos);
  gateway_.flushed = absl::UnavailableError("gone");
  EXPECT_EQ(Send("POST", "/flush_cache")->response->status, 503);
}

TEST_F(OpenAiHandlerTest, SecretsAreNotShown) {
  options_.set_api_key("secret");
  const auto info = Send("GET", "/server_info", "", {{"Authorization", "Bearer secret"}});
  EXPECT_EQ(info->response->status, 200);
  EXPECT_EQ(info->response->body.find("secret"), std::string::npos);
  EXPECT_EQ(Send("GET", "/server_info")->response->status, 401);
  EXPECT_EQ(Send("GET", "/")->response->body.find("tiny"), std::string::npos);
}

TEST_F(OpenAiHandlerTest, TokenizesTextsAndConversations) {
  gateway_.adds_bos = true;
  EXPECT_EQ(Post("/tokenize", {{"prompt", "ab"}})->Body(),
            (Json{{"tokens", {256, 97, 98}}, {"count", 3}, {"max_model_len", 100}}));
  const Json list =
      Post("/v1/tokenize",
           {{"prompt", {"a", "bc"}}, {"add_special_tokens", false}, {"return_token_strs", true}})
          ->Body();
  EXPECT_EQ(list["tokens"], (Json{Json{97}, Json{98, 99}}));
  EXPECT_EQ(list["count"], (Json{1, 2}));
  EXPECT_EQ(list["token_strs"], (Json{Json{"a"}, Json{"b", "c"}}));
  const Json chat =
      Post("/tokenize", {{"messages", {{{"role", "user"}, {"content", "x"}}}}})->Body();
  EXPECT_EQ(chat["count"], 6);
  EXPECT_EQ(ErrorOf("/tokenize", R"({"promt":"a"})")["param"], "promt");
  EXPECT_EQ(ErrorOf("/tokenize", R"({})")["param"], "prompt");
  EXPECT_EQ(Post("/tokenize", {{"prompt", "a"}, {"model", "other"}})->response->status, 404);
}

TEST_F(OpenAiHandlerTest, WhatIsAbsentIsSaidToBeWithAReason) {
  const Json error = ErrorOf("/v1/embeddings", R"({"input":"a"})", 404);
  EXPECT_NE(error["message"].get<std::string>().find("is not served here: "), std::string::npos);
  EXPECT_EQ(error["type"], "invalid_request_error");
}

TEST_F(OpenAiHandlerTest, DetokenizesListsOfIds) {
  EXPECT_EQ(Post("/detokenize", {{"tokens", {256, 97, 98}}})->Body(),
            (Json{{"text", "ab"}, {"prompt", "ab"}}));
  EXPECT_EQ(
      Post("/detokenize", {{"tokens", {256, 97}}, {"skip_special_tokens", false}})->Body()["text"],
      "<s>a");
  EXPECT_EQ(Post("/detokenize", {{"tokens", {Json{97}, Json{98}}}})->Body()["text"],
            (Json{"a", "b"}));
  EXPECT_EQ(ErrorOf("/detokenize", R"({"tokens":[-1]})")["param"], "tokens");
  EXPECT_EQ(ErrorOf("/detokenize", R"({"tokens":"x"})")["param"], "tokens");
  EXPECT_EQ(ErrorOf("/detokenize", R"({"tokens":[99999999999]})")["param"], "tokens");
}

TEST_F(OpenAiHandlerTest, AbortsARequestAnAnswerOrAll) {
  Complete({{"prompt", "x"}, {"rid", "one"}});
  Complete({{"prompt", "x"}, {"n", 3}, {"request_id", "three"}});
  EXPECT_EQ(Post("/abort_request", {{"rid", "one"}})->Body()["aborted"], 1);
  EXPECT_EQ(Post("/abort_request", {{"rid", "three"}})->Body()["aborted"], 3);
  EXPECT_EQ(Post("/abort_request", {{"rid", "none"}})->Body()["aborted"], 0);
  EXPECT_EQ(Post("/abort_request", {{"abort_all", true}})->Body()["aborted"], 4);
  EXPECT_EQ(ErrorOf("/abort_request", "{}")["param"], "rid");
}

TEST_F(OpenAiHandlerTest, TheGeneratingProbeRunsOneRequestForAllThatAsk) {
  const auto first = Send("GET", "/health_generate");
  const auto second = Send("GET", "/health_generate");
  ASSERT_EQ(gateway_.calls.size(), 1u);
  EXPECT_EQ(gateway_.calls[0].sampling.max_tokens(), 1);
  EXPECT_FALSE(first->response.has_value());
  gateway_.sinks[0]->OnFinished(Finished(FinishReason::kLength));
  EXPECT_EQ(first->response->status, 200);
  EXPECT_EQ(second->response->status, 200);
  const auto third = Send("GET", "/health_generate");
  gateway_.sinks[1]->OnError(absl::UnavailableError("no pair"));
  EXPECT_EQ(third->response->status, 503);
  gateway_.refusal = absl::UnavailableError("stopping");
  EXPECT_EQ(Send("GET", "/health_generate")->response->status, 503);
}

}  // namespace
}  // namespace baton::router
