// The tracing of one process: the tracer that its services use, and the exporters behind it.
//
//   std::unique_ptr<Tracing> tracing = ...;  // Null without --otlp-traces-endpoint.
//   Tracer* tracer = tracing == nullptr ? nullptr : &tracing->tracer();
#ifndef COMMON_TRACING_TRACING_H_
#define COMMON_TRACING_TRACING_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/tracing/span.h"
#include "common/tracing/tracer.h"
#include "proto/baton/v1/config.pb.h"

namespace baton::tracing {

// The process's name in spans.
struct Identity {
  std::string role;  // "router", "prefill", "colocated", "decode"
  std::string instance_id;
};

class Tracing {
 public:
  // Null if tracing is off. INVALID_ARGUMENT for an invalid endpoint, which the options' validation
  // has refused before. `count` is called with the outcome of every span.
  static absl::StatusOr<std::unique_ptr<Tracing>> FromOptions(const v1::Options& options,
                                                              const Identity& identity,
                                                              const CountSpans& count);
  // Flushes. Destroy it after everything that ends spans.
  ~Tracing();

  Tracer& tracer();

 private:
  struct Parts;  // Hides gRPC from includers.
  explicit Tracing(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace baton::tracing

#endif  // COMMON_TRACING_TRACING_H_
