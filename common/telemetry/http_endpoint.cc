#include "common/telemetry/http_endpoint.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/http/http_handler.h"
#include "common/http/http_server.h"
#include "common/telemetry/metrics.h"

namespace baton {
namespace {

HttpResponse StatusResponse(const absl::Status& status) {
  if (status.ok()) return {200, "text/plain; charset=utf-8", "ok\n"};
  return PlainHttpError(503, std::string(status.message()));
}

HttpRoutes MakeRoutes(HttpEndpointCallbacks callbacks) {
  HttpRoutes routes(PlainHttpError);
  routes.Add("GET", "/metrics",
             [metrics = std::move(callbacks.metrics)](const HttpRequest&, const auto& exchange) {
               exchange->Respond({200, kMetricsContentType, metrics()});
             });
  routes.Add("GET", "/health",
             [liveness = std::move(callbacks.liveness)](const HttpRequest&, const auto& exchange) {
               exchange->Respond(StatusResponse(liveness()));
             });
  routes.Add("GET", "/readiness",
             [ready = std::move(callbacks.readiness)](const HttpRequest&, const auto& exchange) {
               exchange->Respond(StatusResponse(ready()));
             });
  return routes;
}

}  // namespace

HttpEndpoint::HttpEndpoint(std::unique_ptr<HttpServer> server) : server_(std::move(server)) {}
HttpEndpoint::~HttpEndpoint() = default;

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(const HttpEndpointConfig& config,
                                                                  HttpEndpointCallbacks callbacks) {
  HttpServerOptions options;
  options.host = config.host;
  options.port = config.port;
  options.io_threads = 1;
  options.worker_threads = 0;
  options.max_connections = config.max_connections;
  options.reserved_connections = 0;  // All connections are probes.
  options.max_request_bytes = 0;
  options.idle_timeout_ms = config.idle_timeout_ms;
  options.receive_timeout_ms = config.idle_timeout_ms;
  options.send_timeout_ms = config.idle_timeout_ms;
  if (config.connections != nullptr) options.observer = CountConnections(*config.connections);
  const auto routes = std::make_shared<const HttpRoutes>(MakeRoutes(std::move(callbacks)));
  BATON_ASSIGN_OR_RETURN(
      auto server,
      HttpServer::Start(options, [routes](const HttpRequest& request, const auto& exchange) {
        routes->Handle(request, exchange);
      }));
  return std::unique_ptr<HttpEndpoint>(new HttpEndpoint(std::move(server)));
}

uint16_t HttpEndpoint::port() const { return server_->port(); }

HttpServerObserver CountConnections(Metrics& metrics) {
  return [&metrics](HttpServerEvent event) {
    switch (event) {
      case HttpServerEvent::kOpened:
        metrics.Add(Metric::kHttpConnectionsOpen, 1);
        metrics.Increment(Metric::kHttpConnectionsAcceptedTotal);
        return;
      case HttpServerEvent::kClosed:
        metrics.Add(Metric::kHttpConnectionsOpen, -1);
        return;
      case HttpServerEvent::kEvicted:
        metrics.Increment(Metric::kHttpConnectionsEvictedTotal);
        return;
      case HttpServerEvent::kRefused:
        metrics.Increment(Metric::kHttpRefusedTotal, 1, {"connections"});
        return;
      case HttpServerEvent::kBodyRefused:
        metrics.Increment(Metric::kHttpRefusedTotal, 1, {"body_memory"});
        return;
    }
  };
}

}  // namespace baton
