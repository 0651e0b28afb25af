#include "services/router/http/openai_handler.h"

#include <ctime>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/router/http/openai_format.h"
#include "services/router/http/openai_request.h"

namespace baton::router {
namespace {

void RespondError(HttpExchange& exchange, const absl::Status& status) {
  HttpResponse response;
  response.status = HttpStatusOf(status);
  response.body = Dump(ErrorBody(status));
  exchange.Respond(std::move(response));
}

// Collects the answer and sends it in one piece.
class WholeSink : public ResponseSink {
 public:
  WholeSink(AnswerHeader header, std::shared_ptr<HttpExchange> exchange)
      : header_(std::move(header)), exchange_(std::move(exchange)) {}

  void OnPromptTokens(std::vector<TokenPiece>) override {}  // No field asks for them yet.
  void OnTokens(TextPiece piece) override {
    text_ += piece.text;
    if (!header_.logprobs) return;
    for (TokenPiece& token : piece.tokens) tokens_.push_back(std::move(token));
  }
  void OnFinished(Outcome outcome) override {
    text_ += outcome.text;
    HttpResponse response;
    response.body = Dump(WholeAnswer(header_, text_, tokens_, outcome));
    exchange_->Respond(std::move(response));
  }
  void OnError(absl::Status status) override { RespondError(*exchange_, status); }

 private:
  const AnswerHeader header_;
  const std::shared_ptr<HttpExchange> exchange_;
  std::string text_;
  std::vector<TokenPiece> tokens_;
};

// Sends every decode step as one event. The stream opens with the first token, so that a failure
// before it still has an HTTP status of its own.
class EventSink : public ResponseSink {
 public:
  EventSink(AnswerHeader header, std::shared_ptr<HttpExchange> exchange)
      : header_(std::move(header)), exchange_(std::move(exchange)) {}

  void OnPromptTokens(std::vector<TokenPiece>) override {}  // No field asks for them yet.
  void OnTokens(TextPiece piece) override {
    Open();
    exchange_->SendEvent(Dump(TextChunk(header_, piece)));
  }
  void OnFinished(Outcome outcome) override {
    Open();
    exchange_->SendEvent(Dump(FinishChunk(header_, outcome)));
    if (header_.usage) exchange_->SendEvent(Dump(UsageChunk(header_, outcome.usage)));
    exchange_->SendEvent("[DONE]");
    exchange_->EndEvents();
  }
  void OnError(absl::Status status) override {
    if (!open_) return RespondError(*exchange_, status);
    exchange_->SendEvent(Dump(ErrorBody(status)));
    exchange_->AbortEvents();
  }

 private:
  void Open() {
    if (std::exchange(open_, true)) return;
    exchange_->BeginEvents();
    if (header_.endpoint == Endpoint::kChatCompletions) {
      exchange_->SendEvent(Dump(RoleChunk(header_)));
    }
  }

  const AnswerHeader header_;
  const std::shared_ptr<HttpExchange> exchange_;
  bool open_ = false;
};

// Takes the same time for every key of a length.
bool SameSecret(std::string_view given, std::string_view expected) {
  unsigned int difference = given.size() == expected.size() ? 0 : 1;
  for (size_t i = 0; i < given.size() && i < expected.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(expected[i]);
  }
  return difference == 0;
}

void RespondProbe(HttpExchange& exchange, bool good, const std::string& reason) {
  HttpResponse response;
  response.status = good ? 200 : 503;
  response.body = Dump({{"status", good ? "ok" : "unavailable"}, {"reason", reason}});
  exchange.Respond(std::move(response));
}

constexpr std::string_view kModelPrefix = "/v1/models/";

}  // namespace

OpenAiHandler::OpenAiHandler(Gateway& gateway, std::string api_key)
    : gateway_(gateway),
      api_key_(std::move(api_key)),
      started_s_(std::time(nullptr)),
      routes_(OpenAiError) {
  AddProbes();
  AddGuarded("GET", "/v1/models", [this](const HttpRequest&, const auto& exchange) {
    HttpResponse response;
    response.body = Dump(ModelList(gateway_.model_info(), started_s_));
    exchange->Respond(std::move(response));
  });
  AddGuarded("GET", absl::StrCat(std::string(kModelPrefix), "*"),
             [this](const HttpRequest& request, const auto& exchange) {
               HandleModel(request, *exchange);
             });
  AddGuarded("POST", "/v1/completions", [this](const HttpRequest& request, const auto& exchange) {
    Generate(Endpoint::kCompletions, request, exchange);
  });
  AddGuarded("POST", "/v1/chat/completions",
             [this](const HttpRequest& request, const auto& exchange) {
               Generate(Endpoint::kChatCompletions, request, exchange);
             });
}

void OpenAiHandler::AddProbes() {
  routes_.Add("GET", "/health", [this](const HttpRequest&, const auto& exchange) {
    const bool alive = gateway_.alive();
    RespondProbe(*exchange, alive, alive ? "" : "the router's loop makes no progress");
  });
  routes_.Add("GET", "/readiness", [this](const HttpRequest&, const auto& exchange) {
    const Readiness readiness = gateway_.readiness();
    RespondProbe(*exchange, readiness.ready, readiness.reason);
  });
  routes_.Add("GET", "/metrics", [this](const HttpRequest&, const auto& exchange) {
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = gateway_.ScrapeMetrics();
    exchange->Respond(std::move(response));
  });
}

void OpenAiHandler::AddGuarded(std::string method, std::string path, HttpHandler handler) {
  routes_.Add(std::move(method), std::move(path),
              [this, handler = std::move(handler)](const HttpRequest& request,
                                                   const std::shared_ptr<HttpExchange>& exchange) {
                if (Authorized(request)) return handler(request, exchange);
                RespondError(*exchange, absl::UnauthenticatedError(
                                            "the Authorization header has no valid API key"));
              });
}

bool OpenAiHandler::Authorized(const HttpRequest& request) const {
  return api_key_.empty() ||
         SameSecret(request.Header("Authorization"), absl::StrCat("Bearer ", api_key_));
}

void OpenAiHandler::HandleModel(const HttpRequest& request, HttpExchange& exchange) const {
  const v1::GetModelInfoResponse& model = gateway_.model_info();
  const std::string wanted = request.path.substr(kModelPrefix.size());
  if (wanted != model.served_model_name()) {
    return RespondError(exchange, absl::NotFoundError(absl::StrCat("no such model: ", wanted)));
  }
  HttpResponse response;
  response.body = Dump(ModelCard(model, started_s_));
  exchange.Respond(std::move(response));
}

void OpenAiHandler::Handle(const HttpRequest& request,
                           const std::shared_ptr<HttpExchange>& exchange) const {
  routes_.Handle(request, exchange);
}

void OpenAiHandler::Generate(Endpoint endpoint, const HttpRequest& request,
                             const std::shared_ptr<HttpExchange>& exchange) {
  absl::StatusOr<OpenAiRequest> parsed = ParseOpenAiRequest(endpoint, request.body);
  if (!parsed.ok()) {
    gateway_.CountRefused(endpoint, parsed.status());
    return RespondError(*exchange, parsed.status());
  }
  AnswerHeader header;
  header.endpoint = endpoint;
  header.id =
      absl::StrCat(endpoint == Endpoint::kCompletions ? "cmpl-" : "chatcmpl-", request.request_id);
  header.model = gateway_.model_info().served_model_name();
  header.created_s = std::time(nullptr);
  header.logprobs = parsed->call.sampling.logprobs;
  header.usage = parsed->include_usage;
  parsed->call.request_id = header.id;
  std::shared_ptr<ResponseSink> sink;
  if (parsed->stream) {
    sink = std::make_shared<EventSink>(std::move(header), exchange);
  } else {
    sink = std::make_shared<WholeSink>(std::move(header), exchange);
  }
  const auto submitted = gateway_.Submit(std::move(parsed->call), std::move(sink));
  if (!submitted.ok()) return RespondError(*exchange, submitted.status());
  exchange->OnDisconnect([this, call = submitted->call_id] { gateway_.Cancel(call); });
}

}  // namespace baton::router
