#include "services/router/http/openai_handler.h"

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/strings.h"
#include "services/router/bearer.h"
#include "services/router/http/generate.h"
#include "services/router/http/messages.h"
#include "services/router/http/openai_answer.h"
#include "services/router/http/openai_request.h"
#include "services/router/http/request_span.h"
#include "services/router/http/respond.h"

namespace baton::router {
namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";

// What refuses a request that is well-formed (no workers, no room, a queue that is full) says so
// within milliseconds. Longer than this its status is not worth a stream that seems dead.
constexpr int64_t kHoldMs = 1000;

// What clients look for first and does not exist here, with what to do instead.
constexpr std::pair<const char*, std::string_view> kAbsent[] = {
    {"/v1/embeddings", "the model generates text; it has no pooling head"},
};

using Exchange = std::shared_ptr<HttpExchange>;

// Whether a body may have a schema or a grammar, which is compiled before the request is taken. One
// that only speaks of them waits a little at most.
bool MayCompile(const HttpRequest& request) {
  constexpr std::string_view kSigns[] = {"schema\"",
                                         "\"guided_",
                                         "\"regex\"",
                                         "\"ebnf\"",
                                         "\"strict\"",
                                         "json_object",
                                         "\"structured_outputs\"",
                                         "\"tool_choice\""};
  return std::any_of(std::begin(kSigns), std::end(kSigns), [&](std::string_view sign) {
    return request.body.find(sign) != std::string::npos;
  });
}

void RespondWith(HttpExchange& exchange, const absl::StatusOr<Json>& answer) {
  answer.ok() ? RespondJson(exchange, *answer) : RespondError(exchange, answer.status());
}

}  // namespace

OpenAiHandler::OpenAiHandler(Gateway& gateway, const v1::Options& options,
                             std::shared_ptr<SecretSet> api_keys)
    : gateway_(gateway),
      api_keys_(std::move(api_keys)),
      unknown_(options.unknown_fields() == "ignore" ? UnknownFields::kIgnore
                                                    : UnknownFields::kRefuse),
      event_times_{std::min(kHoldMs, options.sse_keepalive_ms()), options.sse_keepalive_ms()},
      info_(gateway, options, /*guarded=*/!api_keys_->asks_for_nothing()),
      probe_(std::make_shared<GenerationProbe>(gateway)),
      running_(std::make_shared<RunningAnswers>()),
      agents_(gateway, unknown_, event_times_, running_),
      routes_(OpenAiError) {
  AddOpen();
  AddGeneration();
  AddAgents();
  AddTools();
}

absl::StatusOr<std::unique_ptr<HttpServer>> OpenAiHandler::Serve(HttpServerOptions options) const {
  options.reserved_paths = {"/health", "/readiness", "/metrics"};
  options.format_error = OpenAiError;
  options.takes_long = MayCompile;
  return HttpServer::Start(
      options, [this](const HttpRequest& request, const Exchange& e) { Handle(request, e); });
}

void OpenAiHandler::AddOpen() {
  using R = HttpRequest;
  routes_.Add("GET", "/", [this](const R&, const Exchange& e) { info_.Root(*e); });
  routes_.Add("GET", "/health", [this](const R&, const Exchange& e) { info_.Health(*e); });
  routes_.Add("GET", "/readiness", [this](const R&, const Exchange& e) { info_.Readiness(*e); });
  routes_.Add("GET", "/health_generate", [this](const R&, const Exchange& e) { probe_->Ask(e); });
  routes_.Add("GET", "/metrics", [this](const R&, const Exchange& e) { info_.Metrics(*e); });
  routes_.Add("GET", "/version", [this](const R&, const Exchange& e) { info_.Version(*e); });
}

void OpenAiHandler::AddGeneration() {
  using R = HttpRequest;
  AddGuarded("GET", "/v1/models", [this](const R&, const Exchange& e) { info_.Models(*e); });
  AddGuarded("GET", Concat(kModelPrefix, "*"), [this](const R& request, const Exchange& e) {
    info_.Model(request.path.substr(kModelPrefix.size()), *e);
  });
  AddGuarded("POST", "/v1/completions", [this](const R& request, const Exchange& e) {
    Complete(Endpoint::kCompletions, request, e);
  });
  AddGuarded("POST", "/v1/chat/completions", [this](const R& request, const Exchange& e) {
    Complete(Endpoint::kChatCompletions, request, e);
  });
  for (const auto& [path, advice] : kAbsent) {
    const std::string reason = Concat(path, " is not served here: ", advice);
    AddGuarded("POST", path, [reason](const R&, const Exchange& e) {
      RespondError(*e, absl::NotFoundError(reason));
    });
  }
  for (const char* method : {"POST", "PUT"}) {
    AddGuarded(method, "/generate",
               [this](const R& request, const Exchange& e) { Generate(request, e); });
  }
}

void OpenAiHandler::AddAgents() {
  using R = HttpRequest;
  const auto add = [this](const char* path, HttpHandler handler) {
    AddGuarded("POST", path, std::move(handler), MessagesErrorResponse);
  };
  AddGuarded("POST", "/v1/responses",
             [this](const R& r, const Exchange& e) { agents_.Responses(r, e); });
  add("/v1/messages", [this](const R& r, const Exchange& e) { agents_.Messages(r, e); });
  add("/v1/messages/count_tokens",
      [this](const R& r, const Exchange& e) { agents_.CountTokens(r, e); });
}

void OpenAiHandler::AddTools() {
  using R = HttpRequest;
  for (const char* path : {"/tokenize", "/v1/tokenize"}) {
    AddGuarded("POST", path, [this](const R& request, const Exchange& e) {
      RespondWith(*e, Tokenize(gateway_, request.body, unknown_));
    });
  }
  for (const char* path : {"/detokenize", "/v1/detokenize"}) {
    AddGuarded("POST", path, [this](const R& request, const Exchange& e) {
      RespondWith(*e, Detokenize(gateway_, request.body, unknown_));
    });
  }
  for (const char* path : {"/server_info", "/get_server_info"}) {
    AddGuarded("GET", path, [this](const R&, const Exchange& e) { info_.ServerInfo(*e); });
  }
  for (const char* path : {"/model_info", "/get_model_info"}) {
    AddGuarded("GET", path, [this](const R&, const Exchange& e) { info_.ModelInfo(*e); });
  }
  for (const char* method : {"GET", "POST"}) {
    AddGuarded(method, "/flush_cache", [this](const R&, const Exchange& e) {
      gateway_.FlushCache([e](const absl::StatusOr<int>& pages) {
        if (!pages.ok()) return RespondError(*e, pages.status());
        RespondText(
            *e, "text/plain; charset=utf-8",
            absl::StrCat("Cache flushed: ", *pages, " pages are free by that. What running ",
                         "requests use is kept.\n"));
      });
    });
  }
  AddGuarded("POST", "/abort_request", [this](const R& request, const Exchange& e) {
    Abort(gateway_, *running_, request.body, unknown_, e);
  });
}

void OpenAiHandler::AddGuarded(std::string method, std::string path, HttpHandler handler,
                               ErrorForm error) {
  routes_.Add(
      std::move(method), std::move(path),
      [this, handler = std::move(handler), error](const HttpRequest& request, const Exchange& e) {
        if (Authorized(request)) return handler(request, e);
        e->Respond(error(absl::UnauthenticatedError(
            "the Authorization header has no valid API key, and x-api-key has none")));
      });
}

bool OpenAiHandler::Authorized(const HttpRequest& request) const {
  return api_keys_->asks_for_nothing() ||
         api_keys_->Accepts(BearerKey(request.Header("Authorization"))) ||
         api_keys_->Accepts(request.Header("x-api-key"));
}

void OpenAiHandler::Complete(Endpoint endpoint, const HttpRequest& request,
                             const Exchange& exchange) {
  const tracing::TraceContext caller = CallerOf(gateway_, request);
  const auto refuse = [&](const absl::Status& status) {
    gateway_.CountRefused(endpoint, caller, status);
    RespondError(*exchange, status);
  };
  absl::StatusOr<OpenAiRequest> parsed =
      ParseOpenAiRequest(endpoint, request.body, unknown_, request.Header(kTimeoutHeader));
  if (!parsed.ok()) return refuse(parsed.status());
  const std::string prefix = endpoint == Endpoint::kCompletions ? "cmpl-" : "chatcmpl-";
  const std::string id =
      parsed->call.request_id.empty() ? prefix + UniqueId(request) : parsed->call.request_id;
  const bool stream = parsed->stream;
  absl::StatusOr<AnswerPlan> plan =
      PlanAnswer(gateway_, *std::move(parsed), id, std::time(nullptr));
  if (!plan.ok()) return refuse(plan.status());
  std::vector<GenerateCall> calls = std::move(plan->calls);
  SetKeys(gateway_, request, calls);
  tracing::ActiveSpan span = BeginSpan(gateway_, request, caller, calls);
  auto writer = stream ? MakeStreamWriter(gateway_, *std::move(plan), exchange)
                       : MakeWholeWriter(gateway_, *std::move(plan), exchange);
  AnswerGroup::Start(gateway_, running_, id, std::move(calls), std::move(writer), stream, exchange,
                     std::move(span));
  if (stream) exchange->ExpectEvents(event_times_);
}

void OpenAiHandler::Generate(const HttpRequest& request, const Exchange& exchange) {
  const tracing::TraceContext caller = CallerOf(gateway_, request);
  absl::StatusOr<GeneratePlan> plan = PlanGenerate(
      gateway_, request.body, unknown_, request.Header(kTimeoutHeader), UniqueId(request));
  if (!plan.ok()) {
    gateway_.CountRefused(Endpoint::kGenerate, caller, plan.status());
    return RespondError(*exchange, plan.status());
  }
  std::vector<GenerateCall> calls = std::move(plan->calls);
  SetKeys(gateway_, request, calls);
  tracing::ActiveSpan span = BeginSpan(gateway_, request, caller, calls);
  const std::string id = plan->id;
  const bool stream = plan->stream;
  AnswerGroup::Start(gateway_, running_, id, std::move(calls),
                     MakeGenerateWriter(*std::move(plan), exchange), stream, exchange,
                     std::move(span));
  if (stream) exchange->ExpectEvents(event_times_);
}

}  // namespace baton::router
