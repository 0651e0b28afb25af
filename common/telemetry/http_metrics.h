// Counts the connections of an HTTP server in the metrics of its process. A file of its own, so
// that the server knows no metric and the registry no server.
#ifndef COMMON_TELEMETRY_HTTP_METRICS_H_
#define COMMON_TELEMETRY_HTTP_METRICS_H_

#include "common/http/http_server.h"
#include "common/telemetry/metrics.h"

namespace baton {

// For HttpServerOptions::observer. `metrics` outlives the server.
HttpServerObserver CountConnections(Metrics& metrics);

}  // namespace baton

#endif  // COMMON_TELEMETRY_HTTP_METRICS_H_
