// The spans of one request on the router: the request itself, its wait for a pair, and each attempt
// with the calls to both legs. docs/tracing.md shows the tree. Without a tracer, or for a request
// that is not sampled, everything here is null pointers, and only what the client sent is passed
// on.
#ifndef SERVICES_ROUTER_REQUEST_TRACE_H_
#define SERVICES_ROUTER_REQUEST_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/tracing/tracer.h"
#include "proto/baton/v1/common.pb.h"
#include "services/router/core/router_core.h"
#include "services/router/gateway.h"
#include "services/router/router_metrics.h"

namespace baton::router {

// One thread at a time: the front's until the request is handed over, then the loop's.
class RequestTrace {
 public:
  RequestTrace() = default;
  // Goes on with the caller's trace, or begins one. `tracer` may be null.
  RequestTrace(tracing::Tracer* tracer, const tracing::TraceContext& caller, Endpoint endpoint,
               const std::string& model, int64_t now_us);

  // For the log; empty: there is none.
  std::string trace_id() const;

  // The request was refused before it had a session.
  void Refuse(const absl::Status& status, int64_t now_us) { request_.End(now_us, status); }
  // The request is understood: from now on it waits for a pair.
  void Accept(const std::string& request_id, const v1::SamplingParams& sampling, int prompt_tokens,
              int64_t now_us);

  // Each begins a call on a leg and returns what goes with it.
  const tracing::TraceContext& BeginReserve(const Reserve& action, int64_t now_us);
  const tracing::TraceContext& BeginStream(int64_t now_us);
  const tracing::TraceContext& BeginPrefill(int64_t now_us);
  // In place of the three, on a colocated chain.
  const tracing::TraceContext& BeginGeneration(const StartGeneration& action, int64_t now_us);

  // Ends of calls, of the attempt that runs.
  void EndReserve(const absl::Status& status, int64_t now_us);
  void EndStream(const absl::Status& status, int64_t now_us);
  void EndPrefill(const absl::Status& status, const v1::PrefillReport& report, int64_t now_us);
  void AbortDecode(const std::string& reason, int64_t now_us);
  void AbortPrefill(const std::string& reason, int64_t now_us);

  void OnFirstToken(int64_t now_us) { stream_.AddEvent("first_token", now_us); }
  void Finish(const RequestEnd& end, int64_t now_us);

 private:
  tracing::ActiveSpan Child(const char* name, tracing::SpanKind kind,
                            const tracing::TraceContext& parent, int64_t now_us) const {
    return {tracer_, name, kind, parent, now_us};
  }
  tracing::ActiveSpan Call(const char* name, const char* service, const char* method,
                           int64_t now_us) const;
  void BeginAttempt(const InstanceRef& decode, const std::vector<KvWriter>& stages, int64_t now_us);
  void NoteFailure(const absl::Status& status, int64_t now_us);
  void EndAttempt(const absl::Status& status, int64_t now_us);

  tracing::Tracer* tracer_ = nullptr;
  tracing::TraceId trace_;
  tracing::TraceContext context_;  // What calls are made under while nothing is recorded.
  int64_t arrival_us_ = 0;
  int attempts_ = 0;
  tracing::ActiveSpan request_;
  tracing::ActiveSpan queue_;
  tracing::ActiveSpan attempt_;
  tracing::ActiveSpan reserve_;
  tracing::ActiveSpan stream_;
  tracing::ActiveSpan prefill_;
  bool colocated_ = false;  // The attempt has no call but the stream.
  // Why and when the attempt that runs has failed, once it has; it ends with the next one.
  absl::Status failure_;
  int64_t failed_us_ = 0;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_REQUEST_TRACE_H_
