#include "common/tracing/tracer.h"

#include <gtest/gtest.h>

#include <set>

#include "common/base/status.h"

namespace baton::tracing {
namespace {

class TracerTest : public testing::Test {
 protected:
  std::unique_ptr<Tracer> MakeTracer(double ratio = 1) {
    return std::make_unique<Tracer>(TracerOptions{ratio, {1, 2}},
                                    [this](Span span) { ended_.push_back(std::move(span)); });
  }
  static TraceContext Remote(bool sampled) {
    return ParseTraceContext(sampled ? "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
                                     : "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
                             "vendor=1");
  }

  std::vector<Span> ended_;
};

TEST_F(TracerTest, ASpanIsItsParentsChildInItsTrace) {
  const auto tracer = MakeTracer();
  const TraceContext parent = Remote(/*sampled=*/true);
  ActiveSpan outer(tracer.get(), "outer", SpanKind::kServer, parent, 10);
  ASSERT_TRUE(outer);
  const TraceContext context = outer.ContextOr(parent);
  ActiveSpan inner(tracer.get(), "inner", SpanKind::kClient, context, 20);
  inner.End(30);
  outer.End(40);
  ASSERT_EQ(ended_.size(), 2u);
  EXPECT_EQ(ended_[0].name, "inner");
  EXPECT_EQ(ended_[0].kind, SpanKind::kClient);
  EXPECT_EQ(ended_[0].parent, ended_[1].context.span);
  EXPECT_FALSE(ended_[0].remote_parent);
  EXPECT_EQ(ended_[1].parent, parent.span);
  EXPECT_TRUE(ended_[1].remote_parent);
  EXPECT_EQ(ended_[1].context.trace, parent.trace);
  EXPECT_EQ(ended_[1].context.state, "vendor=1");
  EXPECT_NE(ended_[0].context.span, ended_[1].context.span);
  EXPECT_EQ(ended_[0].begin_us, 20);
  EXPECT_EQ(ended_[0].end_us, 30);
}

TEST_F(TracerTest, NothingIsRecordedWithoutTracerOrSampling) {
  const auto tracer = MakeTracer();
  const TraceContext unsampled = Remote(/*sampled=*/false);
  ActiveSpan spans[] = {
      ActiveSpan(),
      ActiveSpan(nullptr, "off", SpanKind::kServer, Remote(true), 1),
      ActiveSpan(tracer.get(), "unsampled", SpanKind::kServer, unsampled, 1),
      ActiveSpan(tracer.get(), "no trace", SpanKind::kServer, TraceContext(), 1),
  };
  for (ActiveSpan& span : spans) {
    EXPECT_FALSE(span);
    span.Set("key", 1);
    span.AddEvent("event", 2);
    span.Link(unsampled);
    span.Fail(absl::InternalError("x"));
    EXPECT_EQ(span.ContextOr(unsampled), unsampled);
    span.End(3);
  }
  EXPECT_TRUE(ended_.empty());
}

TEST_F(TracerTest, ASpanEndsOnce) {
  const auto tracer = MakeTracer();
  ActiveSpan span(tracer.get(), "once", SpanKind::kInternal, Remote(true), 10);
  ActiveSpan moved = std::move(span);
  moved.End(5);  // Not before it began.
  moved.End(20);
  span.End(20);  // NOLINT(bugprone-use-after-move): a span that was moved from ends nothing.
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0].end_us, 10);
}

TEST_F(TracerTest, WhatASpanSaysOfItself) {
  const auto tracer = MakeTracer();
  ActiveSpan span(tracer.get(), "full", SpanKind::kInternal, Remote(true), 10);
  span.Set("flag", true);
  span.Set("count", 7);
  span.Set("bytes", size_t{8});
  span.Set("ratio", 0.5);
  span.Set("text", "words");
  span.Set("list", std::vector<std::string>{"a", "b"});
  span.AddEvent("retry", 12, {{"attempt", int64_t{2}}});
  span.Link(Remote(true));
  span.End(20, WithLeg(absl::UnavailableError("gone"), "decode", "decode-0"));
  ASSERT_EQ(ended_.size(), 1u);
  const Span& ended = ended_[0];
  EXPECT_EQ(std::get<bool>(ended.attributes[0].value), true);
  EXPECT_EQ(std::get<int64_t>(ended.attributes[1].value), 7);
  EXPECT_EQ(std::get<int64_t>(ended.attributes[2].value), 8);
  EXPECT_EQ(std::get<double>(ended.attributes[3].value), 0.5);
  EXPECT_EQ(std::get<std::string>(ended.attributes[4].value), "words");
  EXPECT_EQ(std::get<std::vector<std::string>>(ended.attributes[5].value).size(), 2u);
  EXPECT_STREQ(ended.attributes[6].key, "error.type");
  EXPECT_EQ(std::get<std::string>(ended.attributes[6].value), "UNAVAILABLE");
  EXPECT_EQ(std::get<std::string>(ended.attributes[7].value), "decode");
  EXPECT_EQ(std::get<std::string>(ended.attributes[8].value), "decode-0");
  EXPECT_TRUE(ended.failed);
  EXPECT_EQ(ended.error, "gone");
  ASSERT_EQ(ended.events.size(), 1u);
  EXPECT_EQ(ended.events[0].time_us, 12);
  EXPECT_EQ(ended.links.size(), 1u);
}

TEST_F(TracerTest, TheFirstFailureStaysAndIsCutToSize) {
  const auto tracer = MakeTracer();
  ActiveSpan span(tracer.get(), "failed", SpanKind::kInternal, Remote(true), 10);
  span.Fail(absl::OkStatus());
  span.Fail(absl::AbortedError(std::string(10'000, 'x')));
  span.End(20, absl::InternalError("second"));
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0].error, std::string(512, 'x'));
  EXPECT_EQ(ended_[0].attributes.size(), 1u);
}

TEST_F(TracerTest, ATraceThatBeginsHereIsSampledByItsId) {
  const auto never = MakeTracer(0);
  const auto sometimes = MakeTracer(0.25);
  const auto always = MakeTracer(1);
  int sampled = 0;
  for (int i = 0; i < 4000; ++i) {
    EXPECT_FALSE(never->NewTrace().sampled);
    EXPECT_TRUE(always->NewTrace().sampled);
    const TraceContext context = sometimes->NewTrace();
    EXPECT_TRUE(context.valid());
    EXPECT_EQ(context.span, 0u);
    EXPECT_EQ(context.sampled, SampleByRatio(context.trace, 0.25));
    // A process with a larger ratio samples this one too.
    EXPECT_TRUE(!context.sampled || SampleByRatio(context.trace, 0.5));
    sampled += context.sampled ? 1 : 0;
  }
  EXPECT_GT(sampled, 800);
  EXPECT_LT(sampled, 1200);
}

TEST_F(TracerTest, TheRatioIsComparedAsOthersCompareIt) {
  EXPECT_TRUE(SampleByRatio({1, 0x7fff'ffff'ffff'fffeULL}, 0.5));
  EXPECT_FALSE(SampleByRatio({1, 0x8000'0000'0000'0000ULL}, 0.5));
  EXPECT_FALSE(SampleByRatio({1, 0}, 0));
  EXPECT_TRUE(SampleByRatio({1, ~0ULL}, 1));
}

TEST_F(TracerTest, IdsDiffer) {
  const auto tracer = MakeTracer();
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(ids.insert(Hex(tracer->NewTrace().trace)).second);
    EXPECT_TRUE(ids.insert(Hex(tracer->NewSpanId())).second);
  }
  const auto same = MakeTracer();
  EXPECT_TRUE(ids.contains(Hex(same->NewTrace().trace))) << "equal seeds, equal ids";
}

}  // namespace
}  // namespace baton::tracing
