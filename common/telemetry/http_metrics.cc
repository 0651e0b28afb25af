#include "common/telemetry/http_metrics.h"

namespace baton {

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
