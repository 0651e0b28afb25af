// The endpoints beside OpenAI's completions and chats.
#ifndef SERVICES_ROUTER_HTTP_ENDPOINTS_H_
#define SERVICES_ROUTER_HTTP_ENDPOINTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/http/http_handler.h"
#include "proto/baton/v1/config.pb.h"
#include "services/router/gateway.h"
#include "services/router/http/answer_group.h"
#include "services/router/http/block_answer.h"
#include "services/router/http/chat_body.h"
#include "services/router/http/json_input.h"
#include "services/router/http/request_fields.h"

namespace baton::router {

// ---- What agents speak: Anthropic's Messages and OpenAI's Responses ----

// Thread-safe. `gateway` outlives it and every exchange.
class AgentEndpoints {
 public:
  AgentEndpoints(Gateway& gateway, UnknownFields unknown, EventTimes event_times,
                 std::shared_ptr<RunningAnswers> running)
      : gateway_(gateway),
        unknown_(unknown),
        event_times_(event_times),
        running_(std::move(running)) {}

  void Messages(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) const;
  // /v1/messages/count_tokens: generates nothing.
  void CountTokens(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) const;
  void Responses(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) const;

 private:
  // Submits the plan's call; `form` writes its answer.
  void Start(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange,
             AnswerPlan plan, FieldRenames renames, bool stream,
             std::unique_ptr<BlockForm> form) const;

  Gateway& gateway_;
  const UnknownFields unknown_;
  const EventTimes event_times_;
  const std::shared_ptr<RunningAnswers> running_;
};

// ---- What the front says about itself: the start page, versions, models, settings ----
// In the forms of vLLM and SGLang where they have one.

// Every option of the router with its effective value, but for secrets.
Json SettingsOf(const v1::Options& options);

class InfoEndpoints {
 public:
  // `gateway` outlives it. With `guarded` the start page, which needs no key, names no model.
  InfoEndpoints(const Gateway& gateway, const v1::Options& options, bool guarded);

  void Root(HttpExchange& exchange) const;
  void Version(HttpExchange& exchange) const;
  void ServerInfo(HttpExchange& exchange) const;
  void ModelInfo(HttpExchange& exchange) const;
  void Models(HttpExchange& exchange) const;
  void Model(const std::string& name, HttpExchange& exchange) const;
  void Health(HttpExchange& exchange) const;
  void Readiness(HttpExchange& exchange) const;
  void Metrics(HttpExchange& exchange) const;

 private:
  const Gateway& gateway_;
  const Json settings_;
  const std::string model_path_;
  const std::string tokenizer_path_;
  const bool guarded_;
  const int64_t started_s_;
};

// ---- Beside generation ----
// Tokens of a text and text of tokens (vLLM's and SGLang's forms), ending requests (SGLang's), and
// a probe that generates.

// Bodies of /tokenize and /detokenize as answers.
absl::StatusOr<Json> Tokenize(const Gateway& gateway, const std::string& body,
                              UnknownFields unknown);
absl::StatusOr<Json> Detokenize(const Gateway& gateway, const std::string& body,
                                UnknownFields unknown);

// /abort_request: {"rid": ...} or {"abort_all": true}; answers how many requests were ended.
void Abort(Gateway& gateway, const RunningAnswers& running, const std::string& body,
           UnknownFields unknown, const std::shared_ptr<HttpExchange>& exchange);

// /health_generate: 200 once a request of one token went through the whole cluster, else 503. One
// such request runs at a time, for all that ask meanwhile. Thread-safe.
class GenerationProbe : public std::enable_shared_from_this<GenerationProbe> {
 public:
  explicit GenerationProbe(Gateway& gateway) : gateway_(gateway) {}  // Outlives it.
  void Ask(std::shared_ptr<HttpExchange> exchange);

 private:
  class Sink;
  void Answer(const absl::Status& status);

  Gateway& gateway_;
  Mutex mutex_;
  std::vector<std::shared_ptr<HttpExchange>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_ENDPOINTS_H_
