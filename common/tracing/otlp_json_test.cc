
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/tracing/otlp_encode.h"
#include "common/tracing/tracer.h"
#include "nlohmann/json.hpp"

namespace baton::tracing {
namespace {

TEST(OtlpJsonTest, ASpanWithEverythingIsALine) {
  std::vector<Span> ended;
  Tracer tracer(TracerOptions{1, {3, 4}}, [&](Span span) { ended.push_back(std::move(span)); });
  const TraceContext parent =
      ParseTraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "v=1");
  ActiveSpan active(&tracer, "prefill chunk", SpanKind::kInternal, parent, 100);
  active.Set("flag", true);
  active.Set("count", int64_t{1} << 60);
  active.Set("ratio", 0.5);
  active.Set("text", "two\nlines and \xff");
  active.Set("reasons", std::vector<std::string>{"stop", "length"});
  active.AddEvent("first_token", 150, {{"index", int64_t{0}}});
  active.Link(parent);
  active.End(200, absl::UnavailableError("gone"));
  const std::string line =
      OtlpJsonLine(EncodeSpans(ended, {{"service.name", "baton-test"}}, /*unix_offset_us=*/1000));

  EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
  const auto json = nlohmann::json::parse(line);
  const auto& resource = json["resourceSpans"][0];
  EXPECT_EQ(resource["resource"]["attributes"][0]["value"]["stringValue"], "baton-test");
  EXPECT_EQ(resource["scopeSpans"][0]["scope"]["name"], "baton");
  const auto& span = resource["scopeSpans"][0]["spans"][0];
  EXPECT_EQ(span["traceId"], "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(span["parentSpanId"], "b7ad6b7169203331");
  EXPECT_EQ(span["spanId"].get<std::string>().size(), 16u);
  EXPECT_EQ(span["traceState"], "v=1");
  EXPECT_EQ(span["name"], "prefill chunk");
  EXPECT_EQ(span["kind"], 1);
  EXPECT_EQ(span["startTimeUnixNano"], "1100000") << "64 bits do not fit a JSON number";
  EXPECT_EQ(span["endTimeUnixNano"], "1200000");
  EXPECT_EQ(span["attributes"][0]["value"]["boolValue"], true);
  EXPECT_EQ(span["attributes"][1]["value"]["intValue"], "1152921504606846976");
  EXPECT_EQ(span["attributes"][2]["value"]["doubleValue"], 0.5);
  EXPECT_EQ(span["attributes"][3]["value"]["stringValue"], "two\nlines and \xef\xbf\xbd");
  EXPECT_EQ(span["attributes"][4]["value"]["arrayValue"]["values"][1]["stringValue"], "length");
  EXPECT_EQ(span["events"][0]["name"], "first_token");
  EXPECT_EQ(span["events"][0]["timeUnixNano"], "1150000");
  EXPECT_EQ(span["links"][0]["spanId"], "b7ad6b7169203331");
  EXPECT_EQ(span["status"]["code"], 2);
  EXPECT_EQ(span["status"]["message"], "gone");
}

TEST(OtlpJsonTest, WhatASpanLacksIsNotThere) {
  Span root;
  root.name = "root";
  root.context.trace = {1, 2};
  root.context.span = 3;
  const auto json = nlohmann::json::parse(OtlpJsonLine(EncodeSpans(std::span(&root, 1), {}, 0)));
  const auto& span = json["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  for (const char* key : {"parentSpanId", "traceState", "events", "links", "status"}) {
    EXPECT_FALSE(span.contains(key)) << key;
  }
}

}  // namespace
}  // namespace baton::tracing
