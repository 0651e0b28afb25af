// Spans as OTLP's messages.
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

// The process, in OpenTelemetry's words: service.name, service.instance.id ...
using ResourceAttributes = std::vector<std::pair<std::string, std::string>>;

// `unix_offset_us` is what a span's microseconds lack to be Unix time.
opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest EncodeSpans(
    std::span<const Span> spans, const ResourceAttributes& resource, int64_t unix_offset_us);

}  // namespace baton::tracing

#endif  // COMMON_TRACING_OTLP_ENCODE_H_
