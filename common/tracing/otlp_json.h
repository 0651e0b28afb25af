// OTLP's messages as its JSON: what OpenTelemetry's file exporters write, a line for each batch,
// and what its Collector reads.
#ifndef COMMON_TRACING_OTLP_JSON_H_
#define COMMON_TRACING_OTLP_JSON_H_

#include <string>

#include "proto/opentelemetry/proto/collector/trace/v1/trace_service.pb.h"

namespace baton::tracing {

// One line, with its end. Ids are hexadecimal and enumerations numbers, as OTLP has them and unlike
// protobuf's own JSON; times and other 64-bit integers are decimal text. Bytes that are no UTF-8
// are replaced.
std::string OtlpJsonLine(
    const opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest& request);

}  // namespace baton::tracing

#endif  // COMMON_TRACING_OTLP_JSON_H_
