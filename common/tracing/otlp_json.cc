#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/tracing/otlp_encode.h"
#include "nlohmann/json.hpp"

namespace baton::tracing {
namespace {

namespace otlp = opentelemetry::proto;
using Json = nlohmann::ordered_json;

std::string HexOf(const std::string& bytes) { return absl::BytesToHexString(bytes); }

Json ValueJson(const otlp::common::v1::AnyValue& value) {
  using Value = otlp::common::v1::AnyValue;
  switch (value.value_case()) {
    case Value::kBoolValue:
      return {{"boolValue", value.bool_value()}};
    case Value::kIntValue:
      return {{"intValue", absl::StrCat(value.int_value())}};
    case Value::kDoubleValue:
      return {{"doubleValue", value.double_value()}};
    case Value::kArrayValue: {
      Json elements = Json::array();
      for (const Value& element : value.array_value().values()) {
        elements.push_back(ValueJson(element));
      }
      return {{"arrayValue", {{"values", std::move(elements)}}}};
    }
    default:
      return {{"stringValue", value.string_value()}};
  }
}

template <typename Attributes>
Json AttributesJson(const Attributes& attributes) {
  Json list = Json::array();
  for (const otlp::common::v1::KeyValue& attribute : attributes) {
    list.push_back({{"key", attribute.key()}, {"value", ValueJson(attribute.value())}});
  }
  return list;
}

Json SpanJson(const otlp::trace::v1::Span& span) {
  Json json = {{"traceId", HexOf(span.trace_id())}, {"spanId", HexOf(span.span_id())}};
  if (!span.trace_state().empty()) json["traceState"] = span.trace_state();
  if (!span.parent_span_id().empty()) json["parentSpanId"] = HexOf(span.parent_span_id());
  json["flags"] = span.flags();
  json["name"] = span.name();
  json["kind"] = static_cast<int>(span.kind());
  json["startTimeUnixNano"] = absl::StrCat(span.start_time_unix_nano());
  json["endTimeUnixNano"] = absl::StrCat(span.end_time_unix_nano());
  json["attributes"] = AttributesJson(span.attributes());
  for (const auto& event : span.events()) {
    json["events"].push_back({{"timeUnixNano", absl::StrCat(event.time_unix_nano())},
                              {"name", event.name()},
                              {"attributes", AttributesJson(event.attributes())}});
  }
  for (const auto& link : span.links()) {
    json["links"].push_back(
        {{"traceId", HexOf(link.trace_id())}, {"spanId", HexOf(link.span_id())}});
  }
  if (span.has_status()) {
    json["status"] = {{"message", span.status().message()},
                      {"code", static_cast<int>(span.status().code())}};
  }
  return json;
}

}  // namespace

std::string OtlpJsonLine(const otlp::collector::trace::v1::ExportTraceServiceRequest& request) {
  Json resources = Json::array();
  for (const auto& resource : request.resource_spans()) {
    Json scopes = Json::array();
    for (const auto& scope : resource.scope_spans()) {
      Json spans = Json::array();
      for (const otlp::trace::v1::Span& span : scope.spans()) spans.push_back(SpanJson(span));
      scopes.push_back(
          {{"scope", {{"name", scope.scope().name()}, {"version", scope.scope().version()}}},
           {"spans", std::move(spans)}});
    }
    resources.push_back(
        {{"resource", {{"attributes", AttributesJson(resource.resource().attributes())}}},
         {"scopeSpans", std::move(scopes)}});
  }
  const Json all = {{"resourceSpans", std::move(resources)}};
  return absl::StrCat(all.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
}

}  // namespace baton::tracing
