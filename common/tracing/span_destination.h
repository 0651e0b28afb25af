// Where an exporter's batches go: a collector, or a local file.
#ifndef COMMON_TRACING_SPAN_DESTINATION_H_
#define COMMON_TRACING_SPAN_DESTINATION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "proto/opentelemetry/proto/collector/trace/v1/trace_service.pb.h"

namespace baton::tracing {

class SpanDestination {
 public:
  using Request = opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest;

  virtual ~SpanDestination() = default;

  // Called on the exporter's thread. Returns by `until_us` (NowUs's clock) or when Cancel is
  // called. `refused` is the number of spans that were refused from an accepted batch.
  virtual absl::Status Send(const Request& request, int64_t until_us, int64_t& refused) = 0;
  // Any thread: makes a running Send return soon.
  virtual void Cancel() = 0;
  // The destination, for people.
  virtual const std::string& name() const = 0;
};

// OTLP over gRPC; `endpoint` is HOST:PORT, as net::ParseOtlpEndpoint returns it. Connects at the
// first batch.
std::unique_ptr<SpanDestination> CollectorAt(const std::string& endpoint);

// The maximum size of a trace file. Later batches are FAILED_PRECONDITION and lost.
inline constexpr int64_t kTraceFileBytesMax = int64_t{1} << 30;

// Appends a line of OTLP's JSON for each batch (otlp_encode.h). All processes of a machine may
// write to one file: a line is a single append. The file is opened at the first batch.
std::unique_ptr<SpanDestination> FileAt(const std::string& path,
                                        int64_t bytes_max = kTraceFileBytesMax);

}  // namespace baton::tracing

#endif  // COMMON_TRACING_SPAN_DESTINATION_H_
