#include "common/tracing/otlp_encode.h"

#include <gtest/gtest.h>

#include <map>

#include "absl/status/status.h"
#include "common/tracing/tracer.h"

namespace baton::tracing {
namespace {

namespace otlp = opentelemetry::proto;

TEST(OtlpEncodeTest, ASpanWithEverything) {
  std::vector<Span> ended;
  Tracer tracer(TracerOptions{1, {3, 4}}, [&](Span span) { ended.push_back(std::move(span)); });
  const TraceContext parent =
      ParseTraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "v=1");
  ActiveSpan active(&tracer, "prefill", SpanKind::kServer, parent, 100);
  active.Set("flag", true);
  active.Set("count", 7);
  active.Set("ratio", 0.5);
  active.Set("text", "words");
  active.Set("reasons", std::vector<std::string>{"stop", "length"});
  active.AddEvent("first_token", 150, {{"index", int64_t{0}}});
  active.Link(parent);
  active.End(200, absl::UnavailableError("gone"));
  ASSERT_EQ(ended.size(), 1u);

  const auto request =
      EncodeSpans(ended, {{"service.name", "baton-test"}}, /*unix_offset_us=*/1000);
  ASSERT_EQ(request.resource_spans_size(), 1);
  EXPECT_EQ(request.resource_spans(0).resource().attributes(0).value().string_value(),
            "baton-test");
  const otlp::trace::v1::Span& span = request.resource_spans(0).scope_spans(0).spans(0);
  EXPECT_EQ(span.trace_id(), Bytes(parent.trace));
  EXPECT_EQ(span.span_id().size(), 8u);
  EXPECT_EQ(span.parent_span_id(), Bytes(parent.span));
  EXPECT_EQ(span.trace_state(), "v=1");
  EXPECT_EQ(span.flags(), 0x301u) << "sampled, and the parent is known to be remote";
  EXPECT_EQ(span.name(), "prefill");
  EXPECT_EQ(span.kind(), otlp::trace::v1::Span::SPAN_KIND_SERVER);
  EXPECT_EQ(span.start_time_unix_nano(), 1'100'000u);
  EXPECT_EQ(span.end_time_unix_nano(), 1'200'000u);
  std::map<std::string, otlp::common::v1::AnyValue> values;
  for (const auto& attribute : span.attributes()) values[attribute.key()] = attribute.value();
  EXPECT_TRUE(values["flag"].bool_value());
  EXPECT_EQ(values["count"].int_value(), 7);
  EXPECT_EQ(values["ratio"].double_value(), 0.5);
  EXPECT_EQ(values["text"].string_value(), "words");
  EXPECT_EQ(values["reasons"].array_value().values(1).string_value(), "length");
  EXPECT_EQ(values["error.type"].string_value(), "UNAVAILABLE");
  ASSERT_EQ(span.events_size(), 1);
  EXPECT_EQ(span.events(0).name(), "first_token");
  EXPECT_EQ(span.events(0).time_unix_nano(), 1'150'000u);
  EXPECT_EQ(span.events(0).attributes(0).key(), "index");
  EXPECT_EQ(span.links(0).span_id(), Bytes(parent.span));
  EXPECT_EQ(span.status().code(), otlp::trace::v1::Status::STATUS_CODE_ERROR);
  EXPECT_EQ(span.status().message(), "gone");
}

TEST(OtlpEncodeTest, ARootHasNoParentAndASuccessNoStatus) {
  Span root;
  root.name = "root";
  root.context.trace = {1, 2};
  root.context.span = 3;
  const auto request = EncodeSpans(std::span(&root, 1), {}, 0);
  const auto& span = request.resource_spans(0).scope_spans(0).spans(0);
  EXPECT_TRUE(span.parent_span_id().empty());
  EXPECT_FALSE(span.has_status());
  EXPECT_EQ(span.flags(), 0x101u);
  EXPECT_EQ(span.kind(), otlp::trace::v1::Span::SPAN_KIND_INTERNAL);
}

// The numbers on the wire, by hand: what any collector reads.
TEST(OtlpEncodeTest, FieldNumbersAreOtlps) {
  const auto number = [](const google::protobuf::Descriptor* message, const char* field) {
    return message->FindFieldByName(field)->number();
  };
  const auto* span = otlp::trace::v1::Span::descriptor();
  EXPECT_EQ(span->full_name(), "opentelemetry.proto.trace.v1.Span");
  const std::pair<const char*, int> fields[] = {{"trace_id", 1},
                                                {"span_id", 2},
                                                {"trace_state", 3},
                                                {"parent_span_id", 4},
                                                {"name", 5},
                                                {"kind", 6},
                                                {"start_time_unix_nano", 7},
                                                {"end_time_unix_nano", 8},
                                                {"attributes", 9},
                                                {"events", 11},
                                                {"links", 13},
                                                {"status", 15},
                                                {"flags", 16}};
  for (const auto& [name, expected] : fields) EXPECT_EQ(number(span, name), expected) << name;
  EXPECT_EQ(number(otlp::trace::v1::Status::descriptor(), "code"), 3);
  EXPECT_EQ(number(otlp::trace::v1::Status::descriptor(), "message"), 2);
  EXPECT_EQ(number(otlp::trace::v1::ResourceSpans::descriptor(), "scope_spans"), 2);
  EXPECT_EQ(number(otlp::trace::v1::ScopeSpans::descriptor(), "spans"), 2);
  EXPECT_EQ(number(otlp::common::v1::AnyValue::descriptor(), "array_value"), 5);
  EXPECT_EQ(otlp::collector::trace::v1::ExportTraceServiceRequest::descriptor()->full_name(),
            "opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest");
}

}  // namespace
}  // namespace baton::tracing
