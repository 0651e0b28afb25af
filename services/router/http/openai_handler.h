// The routes of the HTTP front: OpenAI's API over the gateway, and the operator's paths.
#ifndef SERVICES_ROUTER_HTTP_OPENAI_HANDLER_H_
#define SERVICES_ROUTER_HTTP_OPENAI_HANDLER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "common/http/http_handler.h"
#include "common/http/http_routes.h"
#include "services/router/gateway.h"

namespace baton::router {

// Thread-safe. `gateway` outlives it. An empty `api_key` asks for none; otherwise it guards /v1/*,
// but not probes and metrics.
class OpenAiHandler {
 public:
  OpenAiHandler(Gateway& gateway, std::string api_key);

  OpenAiHandler(const OpenAiHandler&) = delete;
  OpenAiHandler& operator=(const OpenAiHandler&) = delete;

  void Handle(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) const;

 private:
  // Routes are added by the constructor: probes, which need no key, and the API, which does.
  void AddProbes();
  void AddGuarded(std::string method, std::string path, HttpHandler handler);

  void HandleModel(const HttpRequest& request, HttpExchange& exchange) const;
  void Generate(Endpoint endpoint, const HttpRequest& request,
                const std::shared_ptr<HttpExchange>& exchange);
  bool Authorized(const HttpRequest& request) const;

  Gateway& gateway_;
  const std::string api_key_;
  const int64_t started_s_;
  HttpRoutes routes_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_OPENAI_HANDLER_H_
