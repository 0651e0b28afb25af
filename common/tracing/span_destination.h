// Where an exporter's batches go: a collector, or a file of this machine.
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

  // The exporter's thread. Returns by `until_us` (NowUs's clock) or when Cancel is called.
  // `refused`: spans of a batch that was taken otherwise.
  virtual absl::Status Send(const Request& request, int64_t until_us, int64_t& refused) = 0;
  // Any thread: a Send that is under way ends soon.
  virtual void Cancel() = 0;
  // For people: where spans go.
  virtual const std::string& name() const = 0;
};

// OTLP over gRPC; `endpoint` is HOST:PORT, as ParseEndpoint makes it. Connects at the first batch.
std::unique_ptr<SpanDestination> CollectorAt(const std::string& endpoint);

// A trace file holds no more; what comes behind is FAILED_PRECONDITION and lost.
inline constexpr int64_t kTraceFileBytesMax = int64_t{1} << 30;

// Appends a line of OTLP's JSON for each batch (otlp_json.h). All processes of a machine may write
// to one file: a line is one write to its end. It is opened at the first batch.
std::unique_ptr<SpanDestination> FileAt(const std::string& path,
                                        int64_t bytes_max = kTraceFileBytesMax);

}  // namespace baton::tracing

#endif  // COMMON_TRACING_SPAN_DESTINATION_H_
