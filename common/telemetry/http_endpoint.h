// A worker's HTTP endpoint: GET (or HEAD) /metrics, /health and /readiness, for Prometheus and
// probes. Three routes on common/http's server with a thread of its own, so that it answers while
// the worker computes.
#ifndef COMMON_TELEMETRY_HTTP_ENDPOINT_H_
#define COMMON_TELEMETRY_HTTP_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/http/http_server.h"
#include "common/telemetry/metrics.h"

namespace baton {

class HttpServer;
class Metrics;

struct HttpEndpointConfig {
  std::string host = "127.0.0.1";  // An address of this machine, or a name that resolves to one.
  uint16_t port = 0;               // 0: any free port; HttpEndpoint::port() returns it.
  size_t max_connections = 64;     // A further one closes the connection that has idled longest.
  int idle_timeout_ms = 5000;      // A connection without a complete request is closed after it.
  Metrics* connections = nullptr;  // If set, counts connections; outlives the endpoint.
};

// Called on the endpoint's thread. They must return at once and never wait for a peer: otherwise a
// peer's failure would make this process's probes fail.
struct HttpEndpointCallbacks {
  std::function<std::string()> metrics;     // Body of /metrics: Metrics::Scrape.
  std::function<absl::Status()> liveness;   // OK while the process makes progress.
  std::function<absl::Status()> readiness;  // OK while the process takes requests.
};

class HttpEndpoint {
 public:
  // Listens and starts the thread. InvalidArgument if the host is not an address, Unavailable if it
  // cannot listen; both name the address.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(const HttpEndpointConfig& config,
                                                             HttpEndpointCallbacks callbacks);
  ~HttpEndpoint();  // Closes all connections and joins the thread.
  HttpEndpoint(const HttpEndpoint&) = delete;
  HttpEndpoint& operator=(const HttpEndpoint&) = delete;

  uint16_t port() const;

 private:
  explicit HttpEndpoint(std::unique_ptr<HttpServer> server);
  std::unique_ptr<HttpServer> server_;
};

// Counts the connections of an HTTP server in the metrics of its process. A file of its own, so
// that the server knows no metric and the registry no server.

// For HttpServerOptions::observer. `metrics` outlives the server.
HttpServerObserver CountConnections(Metrics& metrics);

}  // namespace baton

#endif  // COMMON_TELEMETRY_HTTP_ENDPOINT_H_
