// The router's share of the metrics table.
#ifndef SERVICES_ROUTER_ROUTER_METRICS_H_
#define SERVICES_ROUTER_ROUTER_METRICS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/telemetry/http_endpoint.h"
#include "common/telemetry/metrics.h"
#include "common/tracing/span.h"
#include "common/types/sampled_token.h"
#include "services/router/core/router_core.h"
#include "services/router/gateway.h"

namespace baton::router {

// How a request ended; for metrics and the log.
struct RequestEnd {
  std::string request_id;
  std::string trace_id;  // Empty: it is in no trace.
  Endpoint endpoint = Endpoint::kGenerate;
  absl::Status status;  // OK: `reason` counts.
  FinishReason reason = FinishReason::kStop;
  int64_t duration_us = 0;
  int prompt_tokens = 0;
  int completion_tokens = 0;
  int cached_tokens = 0;  // The prompt's.
  int64_t ttft_us = 0;    // Only if there are completion tokens.
  int64_t decode_us = 0;  // From the first token to the last.
  std::string chain_id;   // The last attempt's; empty if none was paired.
  std::string decode_instance;
  int attempts = 0;
  int resumes = 0;
};

const char* EndpointName(Endpoint endpoint);
// Why a request that ended this way did: "stop", "length", "abort", "error".
const char* FinishName(const RequestEnd& end);

// Thread-safe, but for SetLoad.
class RouterMetrics {
 public:
  RouterMetrics(const std::string& model_name, const std::string& instance_id);

  void CountAdmitted(int prompt_tokens, int64_t queue_us);
  void CountFirstToken(int64_t ttft_us);
  void CountNextToken(int64_t itl_us);
  void CountEnd(const RequestEnd& end);
  void CountRefused(Endpoint endpoint, const absl::Status& status);
  void CountToolCalls(int parsed, int malformed);

  // The gauges and the core's own counters; on the loop's thread.
  void SetLoad(const RouterLoad& load, const std::vector<Worker>& workers, size_t pairs, bool ready,
               bool draining);
  // Workers that ask to join in vain, by id.
  void SetRefused(const std::map<std::string, Applicant>& applicants);

  // Counts what the HTTP front tells of its connections.
  HttpServerObserver http_observer() { return CountConnections(metrics_); }
  void CountSpans(tracing::SpanFate fate, size_t spans) {
    metrics_.Increment(Metric::kTraceSpansTotal, static_cast<double>(spans),
                       {tracing::FateLabel(fate)});
  }

  std::string Scrape() { return metrics_.Scrape(); }

 private:
  Metrics metrics_;
  RouterLoad last_;  // What the counters have seen.
  DrainMetrics drain_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_ROUTER_METRICS_H_
