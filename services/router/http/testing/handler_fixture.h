// A gateway and an exchange that a test plays itself, and the handler between them.
#ifndef SERVICES_ROUTER_HTTP_TESTING_HANDLER_FIXTURE_H_
#define SERVICES_ROUTER_HTTP_TESTING_HANDLER_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "services/router/http/json_input.h"
#include "services/router/http/openai_handler.h"

namespace baton::router {

// Records what was submitted; the test plays the router. Its tokens are bytes, and kBos.
class FakeGateway : public Gateway {
 public:
  static constexpr int32_t kBos = 256;  // "<s>"

  FakeGateway() {
    info_.set_served_model_name("tiny");
    info_.set_version("1.2");
    info_.set_max_context_tokens(100);
  }
  absl::StatusOr<Submitted> Submit(GenerateCall call, std::shared_ptr<ResponseSink> sink) override {
    if (!refusal.ok() && calls.size() >= accepted) return refusal;
    calls.push_back(std::move(call));
    sinks.push_back(std::move(sink));
    return Submitted{sinks.size(), "id", 3};
  }
  void CountRefused(Endpoint, const tracing::TraceContext&, const absl::Status&) override {
    ++refused;
  }
  void Cancel(uint64_t call_id) override { cancelled.push_back(call_id); }
  void Abort(const std::string& id, std::function<void(absl::Status)> done) override {
    const bool found = std::any_of(calls.begin(), calls.end(),
                                   [&](const GenerateCall& call) { return call.request_id == id; });
    done(found ? absl::OkStatus() : absl::NotFoundError("no such request"));
  }
  void FlushCache(std::function<void(absl::StatusOr<int>)> done) override { done(flushed); }
  void AbortAll(std::function<void(int)> done) override { done(static_cast<int>(calls.size())); }
  absl::StatusOr<std::vector<int32_t>> Encode(const GenerateCall& call) const override {
    if (const auto* ids = std::get_if<TokenIdsPrompt>(&call.prompt))
      return {{ids->begin(), ids->end()}};
    std::string text;
    if (const auto* given = std::get_if<std::string>(&call.prompt)) text = *given;
    if (const auto* chat = std::get_if<ChatPrompt>(&call.prompt)) {
      encoded_chat = *chat;
      for (const ChatMessage& message : chat->messages) text += message.role + message.content;
    }
    return Tokenize(text, call.add_special_tokens);
  }
  absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& text,
                                                bool add_special) const override {
    std::vector<int32_t> ids;
    if (add_special && adds_bos) ids.push_back(kBos);
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  absl::StatusOr<std::string> Detokenize(const std::vector<int32_t>& ids,
                                         bool skip_special) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < kBos) text += static_cast<char>(id);
      if (id == kBos && !skip_special) text += "<s>";
    }
    return text;
  }
  const v1::GetModelInfoResponse& model_info() const override { return info_; }
  const chat::ChatFormat& chat_format() const override { return format; }
  void CountToolCalls(int parsed, int malformed) override {
    parsed_calls += parsed;
    malformed_calls += malformed;
  }
  Readiness readiness() const override { return {false, "no decode service has joined"}; }
  bool alive() const override { return true; }
  std::string ScrapeMetrics() const override { return "# metrics"; }

  std::vector<GenerateCall> calls;
  std::vector<std::shared_ptr<ResponseSink>> sinks;
  std::vector<uint64_t> cancelled;
  absl::StatusOr<int> flushed = 3;
  absl::Status refusal;
  size_t accepted = 0;  // So many calls are taken before `refusal`.
  int refused = 0;
  bool adds_bos = false;
  mutable ChatPrompt encoded_chat;  // The last one that was encoded.
  chat::ChatFormat format;
  int parsed_calls = 0;
  int malformed_calls = 0;

 private:
  v1::GetModelInfoResponse info_;
};

class FakeExchange : public HttpExchange {
 public:
  void Respond(HttpResponse reply) override {
    EXPECT_FALSE(response.has_value());
    response = std::move(reply);
  }
  void ExpectEvents(EventTimes given) override { times = given; }
  void BeginEvents() override { streaming = true; }
  void SendEvent(HttpEvent event) override {
    names.push_back(std::move(event.name));
    events.push_back(std::move(event.data));
  }
  void EndEvents() override { ended = true; }
  void RespondOrEnd(HttpResponse reply, std::vector<HttpEvent> last) override {
    if (!streaming) return Respond(std::move(reply));
    for (HttpEvent& event : last) SendEvent(std::move(event));
    ended = true;
  }
  void AbortEvents() override { aborted = true; }
  void OnDisconnect(std::function<void()> callback) override { gone = std::move(callback); }
  void Run(std::function<void()> task) override {
    if (!holds_tasks) return task();
    tasks.push_back(std::move(task));
  }

  Json Body() const { return Json::parse(response.value().body); }
  Json Event(size_t i) const { return Json::parse(events.at(i)); }

  std::optional<HttpResponse> response;
  std::vector<std::string> events;  // Their data.
  std::vector<std::string> names;
  std::function<void()> gone;
  std::optional<EventTimes> times;
  bool streaming = false;
  bool ended = false;
  bool aborted = false;
  bool holds_tasks = false;  // Until the test runs them.
  std::vector<std::function<void()>> tasks;
};

class HandlerFixture : public testing::Test {
 protected:
  std::shared_ptr<FakeExchange> Send(const std::string& method, const std::string& path,
                                     const std::string& body = "", HttpHeaders headers = {}) {
    if (handler_ == nullptr) {
      auto keys = SecretSet::Load(options_.api_key(), options_.api_key_file());
      BATON_CHECK(keys.ok()) << keys.status();
      handler_ = std::make_unique<OpenAiHandler>(gateway_, options_, *std::move(keys));
    }
    auto exchange = std::make_shared<FakeExchange>();
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.body = body;
    request.headers = std::move(headers);
    request.request_id = "client-" + std::to_string(++requests_);
    handler_->Handle(request, exchange);
    return exchange;
  }
  std::shared_ptr<FakeExchange> Post(const std::string& path, const Json& body) {
    return Send("POST", path, body.dump());
  }
  std::shared_ptr<FakeExchange> Complete(const Json& body) { return Post("/v1/completions", body); }

  // The error of a refused body.
  Json ErrorOf(const std::string& path, const std::string& body, int status = 400) {
    const auto exchange = Send("POST", path, body);
    EXPECT_TRUE(exchange->response.has_value()) << body;
    if (!exchange->response.has_value()) return Json({{"param", ""}, {"message", ""}});
    EXPECT_EQ(exchange->response->status, status) << body;
    return exchange->Body()["error"];
  }

  static Outcome Finished(FinishReason reason, const std::string& rest = "") {
    Outcome outcome;
    outcome.reason = reason;
    outcome.text = rest;
    outcome.usage.set_prompt_tokens(3);
    outcome.usage.set_completion_tokens(2);
    return outcome;
  }
  // A token of one byte or more.
  static TokenPiece Token(const std::string& bytes, float logprob, int64_t offset = 0) {
    TokenPiece piece;
    piece.id = static_cast<uint8_t>(bytes[0]);
    piece.bytes = bytes;
    piece.logprob = logprob;
    piece.text_offset = offset;
    return piece;
  }

  FakeGateway gateway_;
  v1::Options options_;
  std::unique_ptr<OpenAiHandler> handler_;
  int requests_ = 0;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_TESTING_HANDLER_FIXTURE_H_
