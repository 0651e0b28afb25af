// The routes of the HTTP front: OpenAI's API over the gateway, the endpoints that clients of vLLM
// and SGLang expect beside it, and the operator's paths.
#ifndef SERVICES_ROUTER_HTTP_OPENAI_HANDLER_H_
#define SERVICES_ROUTER_HTTP_OPENAI_HANDLER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/http/http_handler.h"
#include "common/http/http_server.h"
#include "common/secrets/secret_set.h"
#include "proto/baton/v1/config.pb.h"
#include "services/router/gateway.h"
#include "services/router/http/answer_group.h"
#include "services/router/http/endpoints.h"
#include "services/router/http/request_fields.h"
#include "services/router/http/respond.h"

namespace baton::router {

// Thread-safe. `gateway` outlives it and every exchange. `api_keys`, if there are any, guard
// everything but the start page, probes and metrics. Of `options` it reads unknown_fields and
// sse_keepalive_ms; /server_info shows the rest.
class OpenAiHandler {
 public:
  OpenAiHandler(Gateway& gateway, const v1::Options& options, std::shared_ptr<SecretSet> api_keys);
  OpenAiHandler(const OpenAiHandler&) = delete;
  OpenAiHandler& operator=(const OpenAiHandler&) = delete;

  void Handle(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) const {
    routes_.Handle(request, exchange);
  }

  // Listens; the server goes before this. `options` needs no paths and no form of errors.
  absl::StatusOr<std::unique_ptr<HttpServer>> Serve(HttpServerOptions options) const;

 private:
  // Routes are added by the constructor: those that need no key, and those that do.
  void AddOpen();
  void AddGeneration();
  void AddAgents();
  void AddTools();
  // `error`: how the path's protocol says that there is no key.
  using ErrorForm = HttpResponse (*)(const absl::Status&);
  void AddGuarded(std::string method, std::string path, HttpHandler handler,
                  ErrorForm error = ErrorResponse);

  void Complete(Endpoint endpoint, const HttpRequest& request,
                const std::shared_ptr<HttpExchange>& exchange);
  void Generate(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange);
  bool Authorized(const HttpRequest& request) const;

  Gateway& gateway_;
  const std::shared_ptr<SecretSet> api_keys_;
  const UnknownFields unknown_;
  const EventTimes event_times_;
  const InfoEndpoints info_;
  const std::shared_ptr<GenerationProbe> probe_;
  const std::shared_ptr<RunningAnswers> running_;
  const AgentEndpoints agents_;
  HttpRoutes routes_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_OPENAI_HANDLER_H_
