// Spans as OTLP's messages, and these as lines of OTLP's JSON: the format that OpenTelemetry's file
// exporters write, one line per batch, and that its Collector reads.
#ifndef COMMON_TRACING_OTLP_ENCODE_H_
#define COMMON_TRACING_OTLP_ENCODE_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/tracing/span.h"
#include "proto/opentelemetry/proto/collector/trace/v1/trace_service.pb.h"

namespace baton::tracing {

// The process, by OpenTelemetry's names: service.name, service.instance.id ...
using ResourceAttributes = std::vector<std::pair<std::string, std::string>>;

// `unix_offset_us` is added to a span's microseconds to get Unix time.
opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest EncodeSpans(
    std::span<const Span> spans, const ResourceAttributes& resource, int64_t unix_offset_us);

// One line with its line end. Ids are hexadecimal and enumerations are numbers, as in OTLP and
// unlike in protobuf's own JSON; times and other 64-bit integers are decimal text. Bytes that are
// not UTF-8 are replaced.
std::string OtlpJsonLine(
    const opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest& request);

}  // namespace baton::tracing

#endif  // COMMON_TRACING_OTLP_ENCODE_H_
