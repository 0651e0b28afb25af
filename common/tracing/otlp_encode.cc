#include "common/tracing/otlp_encode.h"

#include <type_traits>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/telemetry/metrics_table.h"
#include "nlohmann/json.hpp"

namespace baton::tracing {
namespace {

namespace otlp = opentelemetry::proto;

constexpr char kScope[] = "baton";
constexpr uint32_t kSampledFlag = 0x1;
constexpr uint32_t kKnowsIsRemote = 0x100;
constexpr uint32_t kIsRemote = 0x200;

void EncodeValue(const AttributeValue& value, otlp::common::v1::AnyValue& out) {
  std::visit(
      [&out](const auto& v) {
        using Value = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<Value, bool>) {
          out.set_bool_value(v);
        } else if constexpr (std::is_same_v<Value, int64_t>) {
          out.set_int_value(v);
        } else if constexpr (std::is_same_v<Value, double>) {
          out.set_double_value(v);
        } else if constexpr (std::is_same_v<Value, std::string>) {
          out.set_string_value(v);
        } else {
          auto& array = *out.mutable_array_value();
          for (const std::string& element : v) array.add_values()->set_string_value(element);
        }
      },
      value);
}

void EncodeAttributes(const std::vector<Attribute>& attributes,
                      google::protobuf::RepeatedPtrField<otlp::common::v1::KeyValue>& out) {
  for (const Attribute& attribute : attributes) {
    otlp::common::v1::KeyValue& entry = *out.Add();
    entry.set_key(attribute.key);
    EncodeValue(attribute.value, *entry.mutable_value());
  }
}

uint64_t UnixNanoseconds(int64_t us, int64_t unix_offset_us) {
  return static_cast<uint64_t>(us + unix_offset_us) * 1000;
}

void EncodeSpan(const Span& span, int64_t unix_offset_us, otlp::trace::v1::Span& out) {
  out.set_trace_id(Bytes(span.context.trace));
  out.set_span_id(Bytes(span.context.span));
  out.set_trace_state(span.context.state);
  if (span.parent != 0) out.set_parent_span_id(Bytes(span.parent));
  out.set_flags(kSampledFlag | kKnowsIsRemote | (span.remote_parent ? kIsRemote : 0));
  out.set_name(span.name);
  out.set_kind(static_cast<otlp::trace::v1::Span::SpanKind>(span.kind));
  out.set_start_time_unix_nano(UnixNanoseconds(span.begin_us, unix_offset_us));
  out.set_end_time_unix_nano(UnixNanoseconds(span.end_us, unix_offset_us));
  EncodeAttributes(span.attributes, *out.mutable_attributes());
  for (const SpanEvent& event : span.events) {
    auto& entry = *out.add_events();
    entry.set_time_unix_nano(UnixNanoseconds(event.time_us, unix_offset_us));
    entry.set_name(event.name);
    EncodeAttributes(event.attributes, *entry.mutable_attributes());
  }
  for (const SpanLink& link : span.links) {
    auto& entry = *out.add_links();
    entry.set_trace_id(Bytes(link.trace));
    entry.set_span_id(Bytes(link.span));
  }
  if (span.failed) {
    out.mutable_status()->set_code(otlp::trace::v1::Status::STATUS_CODE_ERROR);
    out.mutable_status()->set_message(span.error);
  }
}

}  // namespace

otlp::collector::trace::v1::ExportTraceServiceRequest EncodeSpans(
    std::span<const Span> spans, const ResourceAttributes& resource, int64_t unix_offset_us) {
  otlp::collector::trace::v1::ExportTraceServiceRequest request;
  otlp::trace::v1::ResourceSpans& all = *request.add_resource_spans();
  for (const auto& [key, value] : resource) {
    otlp::common::v1::KeyValue& entry = *all.mutable_resource()->add_attributes();
    entry.set_key(key);
    entry.mutable_value()->set_string_value(value);
  }
  otlp::trace::v1::ScopeSpans& scope = *all.add_scope_spans();
  scope.mutable_scope()->set_name(kScope);
  scope.mutable_scope()->set_version(kBatonVersion);
  for (const Span& span : spans) EncodeSpan(span, unix_offset_us, *scope.add_spans());
  return request;
}

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
