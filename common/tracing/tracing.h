// Tracing of one process, put together: the tracer that its services ask, and the exporter behind
// it.
//
//   std::unique_ptr<Tracing> tracing = ...;  // Null without --otlp-traces-endpoint.
//   Tracer* tracer = tracing == nullptr ? nullptr : &tracing->tracer();
#ifndef COMMON_TRACING_TRACING_H_
#define COMMON_TRACING_TRACING_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/tracing/span_fate.h"
#include "common/tracing/tracer.h"
#include "proto/baton/v1/config.pb.h"

namespace baton::tracing {

// The process as spans name it.
struct Identity {
  std::string role;  // "router", "prefill", "decode"
  std::string instance_id;
};

class Tracing {
 public:
  // Null if the options ask for no tracing. INVALID_ARGUMENT for an endpoint that is none, which
  // the options' validation has refused before. `count` hears of every span in the end.
  static absl::StatusOr<std::unique_ptr<Tracing>> FromOptions(const v1::Options& options,
                                                              const Identity& identity,
                                                              const CountSpans& count);
  // Goes last of all who end spans; flushes.
  ~Tracing();

  Tracer& tracer();

 private:
  struct Parts;  // gRPC stays behind it.
  explicit Tracing(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace baton::tracing

#endif  // COMMON_TRACING_TRACING_H_
