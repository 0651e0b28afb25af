#include "services/router/http/openai_handler.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "services/router/http/json_input.h"

namespace baton::router {
namespace {

// Records what was submitted; the test plays the router.
class FakeGateway : public Gateway {
 public:
  FakeGateway() { info_.set_served_model_name("tiny"); }
  absl::StatusOr<Submitted> Submit(GenerateCall call, std::shared_ptr<ResponseSink> sink) override {
    calls.push_back(std::move(call));
    if (!refusal.ok()) return refusal;
    sinks.push_back(std::move(sink));
    return Submitted{sinks.size(), "id", 3};
  }
  void CountRefused(Endpoint, const absl::Status&) override { ++refused; }
  void Cancel(uint64_t call_id) override { cancelled.push_back(call_id); }
  void Abort(const std::string&, std::function<void(absl::Status)>) override {}
  absl::StatusOr<std::vector<int32_t>> Encode(const GenerateCall&) const override {
    return std::vector<int32_t>{};
  }
  absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string&, bool) const override {
    return std::vector<int32_t>{};
  }
  absl::StatusOr<std::string> Detokenize(const std::vector<int32_t>&, bool) const override {
    return std::string();
  }
  const v1::GetModelInfoResponse& model_info() const override { return info_; }
  Readiness readiness() const override { return {false, "no decode service has joined"}; }
  bool alive() const override { return true; }
  std::string ScrapeMetrics() const override { return "# metrics"; }

  std::vector<GenerateCall> calls;
  std::vector<std::shared_ptr<ResponseSink>> sinks;
  std::vector<uint64_t> cancelled;
  absl::Status refusal;
  int refused = 0;

 private:
  v1::GetModelInfoResponse info_;
};

class FakeExchange : public HttpExchange {
 public:
  void Respond(HttpResponse reply) override { response = std::move(reply); }
  void BeginEvents() override { streaming = true; }
  void SendEvent(std::string data) override { events.push_back(std::move(data)); }
  void EndEvents() override { ended = true; }
  void AbortEvents() override { aborted = true; }
  void OnDisconnect(std::function<void()> callback) override { gone = std::move(callback); }

  std::optional<HttpResponse> response;
  std::vector<std::string> events;
  std::function<void()> gone;
  bool streaming = false;
  bool ended = false;
  bool aborted = false;
};

class OpenAiHandlerTest : public testing::Test {
 protected:
  std::shared_ptr<FakeExchange> Send(const std::string& method, const std::string& path,
                                     const std::string& body = "",
                                     const std::string& authorization = "") {
    OpenAiHandler handler(gateway_, api_key_);
    auto exchange = std::make_shared<FakeExchange>();
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.body = body;
    request.headers = {{"Authorization", authorization}};
    request.request_id = "from-client";
    handler.Handle(request, exchange);
    return exchange;
  }

  // The error of a refused completion body.
  Json ErrorOf(const std::string& path, const std::string& body, int status = 400) {
    const auto exchange = Send("POST", path, body);
    EXPECT_TRUE(exchange->response.has_value()) << body;
    if (!exchange->response.has_value()) return Json();
    EXPECT_EQ(exchange->response->status, status) << body;
    return Json::parse(exchange->response->body)["error"];
  }

  static Outcome Finished(FinishReason reason, const std::string& rest) {
    Outcome outcome;
    outcome.reason = reason;
    outcome.text = rest;
    outcome.usage.set_prompt_tokens(3);
    outcome.usage.set_completion_tokens(2);
    return outcome;
  }

  FakeGateway gateway_;
  std::string api_key_;
};

TEST_F(OpenAiHandlerTest, ReadsEveryFieldOfACompletion) {
  Send("POST", "/v1/completions", R"({"model":"tiny","prompt":[1,2,3],"temperature":0.5,"top_k":4,
      "top_p":0.9,"min_p":0.1,"seed":-1,"stop":["a","b"],"stop_token_ids":[7],"ignore_eos":true,
      "max_tokens":9,"min_tokens":2,"logprobs":3,"n":1,"user":"x","echo":false,"suffix":null})");
  ASSERT_EQ(gateway_.calls.size(), 1u);
  const GenerateCall& call = gateway_.calls[0];
  EXPECT_EQ(std::get<TokenIdsPrompt>(call.prompt), (TokenIdsPrompt{1, 2, 3}));
  EXPECT_EQ(call.sampling.temperature, 0.5);
  EXPECT_EQ(call.sampling.top_k, 4);
  EXPECT_EQ(call.sampling.seed, ~uint64_t{0});
  EXPECT_EQ(call.sampling.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(call.sampling.stop_token_ids, std::vector<int64_t>{7});
  EXPECT_TRUE(call.sampling.ignore_eos);
  EXPECT_EQ(call.sampling.max_tokens, 9);
  EXPECT_EQ(call.sampling.min_tokens, 2);
  EXPECT_TRUE(call.sampling.logprobs);
  EXPECT_EQ(call.sampling.top_logprobs, 3);
}

TEST_F(OpenAiHandlerTest, ReadsAChatWithTextParts) {
  Send("POST", "/v1/chat/completions", R"({"messages":[{"role":"system","content":"s"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
      "max_completion_tokens":5,"logprobs":true,"top_logprobs":2})");
  ASSERT_EQ(gateway_.calls.size(), 1u);
  const auto& chat = std::get<ChatPrompt>(gateway_.calls[0].prompt);
  ASSERT_EQ(chat.messages.size(), 2u);
  EXPECT_EQ(chat.messages[1].content, "ab");
  EXPECT_EQ(gateway_.calls[0].sampling.max_tokens, 5);
  EXPECT_EQ(gateway_.calls[0].names.max_tokens, "max_completion_tokens");
}

TEST_F(OpenAiHandlerTest, RefusesWithTheFieldNamed) {
  const std::map<std::string, std::string> bodies = {
      {R"({"prompt":7})", "prompt"},
      {R"({"prompt":[1,"a"]})", "prompt"},
      {R"({"prompt":["a","b"]})", "prompt"},
      {R"({"prompt":"a","max_tokens":1.5})", "max_tokens"},
      {R"({"prompt":"a","max_tokens":18446744073709551615})", "max_tokens"},
      {R"({"prompt":"a","temperature":"hot"})", "temperature"},
      {R"({"prompt":"a","stop":5})", "stop"},
      {R"({"prompt":"a","n":2})", "n"},
      {R"({"prompt":"a","best_of":2})", "best_of"},
      {R"({"prompt":"a","frequency_penalty":0.5})", "frequency_penalty"},
      {R"({"prompt":"a","logit_bias":{"1":2}})", "logit_bias"},
      {R"({"prompt":"a","stream":1})", "stream"},
      {R"({"prompt":"a","stream_options":{"include_usage":true}})", "stream_options"},
  };
  for (const auto& [body, field] : bodies) {
    const Json error = ErrorOf("/v1/completions", body);
    EXPECT_EQ(error["param"], field) << body;
    EXPECT_EQ(error["type"], "invalid_request_error");
  }
  EXPECT_EQ(gateway_.refused, static_cast<int>(bodies.size()));
  EXPECT_TRUE(gateway_.calls.empty());
}

TEST_F(OpenAiHandlerTest, RefusesBodiesThatAreNoJsonObject) {
  for (const std::string body : {"", "{", "[]", "{\"prompt\":NaN}", "{\"prompt\":\"\xff\"}",
                                 "{\"prompt\":\"\\ud800\"}", "{\"temperature\":1e999}", "null"}) {
    const Json error = ErrorOf("/v1/completions", body);
    EXPECT_NE(error["message"].get<std::string>().find("JSON"), std::string::npos) << body;
  }
  ErrorOf("/v1/completions", std::string(100000, '['));
}

TEST_F(OpenAiHandlerTest, StreamsOneEventPerStepAndTheUsage) {
  const auto exchange =
      Send("POST", "/v1/completions",
           R"({"prompt":"x","stream":true,"stream_options":{"include_usage":true}})");
  EXPECT_FALSE(exchange->streaming) << "the status is still open before the first token";
  gateway_.sinks[0]->OnTokens({"He", {{5, "", 0, {}}}});
  gateway_.sinks[0]->OnTokens({"", {{6, "", 0, {}}}});
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
  gateway_.sinks[0]->OnTokens({"", {{5, "\xe2\x82", -0.5F, {{6, "b", -1.5F}}}}});
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
  api_key_ = "secret";
  EXPECT_EQ(Send("GET", "/v1/models")->response->status, 401);
  EXPECT_EQ(Send("GET", "/v1/models", "", "Bearer secreT")->response->status, 401);
  EXPECT_EQ(Send("GET", "/v1/models", "", "Bearer secret")->response->status, 200);
  EXPECT_EQ(Send("GET", "/health")->response->status, 200);
}

TEST_F(OpenAiHandlerTest, SubmitsRefusalReachesTheClient) {
  gateway_.refusal = InvalidField("prompt", "is longer than the context");
  const Json error = ErrorOf("/v1/completions", R"({"prompt":"x"})");
  EXPECT_EQ(error["param"], "prompt");
}

}  // namespace
}  // namespace baton::router
