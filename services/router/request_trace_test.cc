#include "services/router/request_trace.h"

#include <gtest/gtest.h>

#include <map>

#include "common/base/status.h"

namespace baton::router {
namespace {

using tracing::Span;
using tracing::TraceContext;

class RequestTraceTest : public testing::Test {
 protected:
  RequestTraceTest()
      : tracer_(tracing::TracerOptions{1, {1, 2}},
                [this](Span span) { spans_.push_back(std::move(span)); }) {}

  static TraceContext Caller(bool sampled = true) {
    TraceContext caller = tracing::ParseTraceContext(
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1");
    caller.sampled = sampled;
    return caller;
  }
  static Reserve ReserveOn(const std::string& decode) {
    Reserve action;
    action.decode = {decode, 1};
    action.writers = {{{"prefill-0", 1}, {0, 3}}, {{"prefill-1", 1}, {3, 6}}};
    return action;
  }
  static RequestEnd EndWith(const absl::Status& status, int tokens) {
    RequestEnd end;
    end.status = status;
    end.reason = FinishReason::kLength;
    end.completion_tokens = tokens;
    end.ttft_us = 500'000;
    end.attempts = 1;
    return end;
  }
  RequestTrace Begin(const TraceContext& caller) {
    RequestTrace trace(&tracer_, caller, Endpoint::kCompletions, "tiny", 100);
    v1::SamplingParams sampling;
    sampling.set_max_tokens(7);
    trace.Accept("req-1", sampling, 40, 110);
    return trace;
  }
  // Spans by name, in the order in which they ended.
  std::vector<Span> Named(const std::string& name) const {
    std::vector<Span> found;
    for (const Span& span : spans_) {
      if (span.name == name) found.push_back(span);
    }
    return found;
  }
  static std::map<std::string, tracing::AttributeValue> Values(const Span& span) {
    std::map<std::string, tracing::AttributeValue> values;
    for (const auto& [key, value] : span.attributes) {
      EXPECT_TRUE(values.emplace(key, value).second) << key << " twice";
    }
    return values;
  }

  std::vector<Span> spans_;
  tracing::Tracer tracer_;
};

TEST_F(RequestTraceTest, CallsAreMadeUnderTheirSpansInTheCallersTrace) {
  RequestTrace trace = Begin(Caller());
  const TraceContext reserve = trace.BeginReserve(ReserveOn("decode-0"), 200);
  trace.EndReserve(absl::OkStatus(), 210);
  const TraceContext stream = trace.BeginStream(210);
  const TraceContext prefill = trace.BeginPrefill(211);
  trace.OnFirstToken(300);
  trace.EndPrefill(absl::OkStatus(), {}, 310);
  trace.EndStream(absl::OkStatus(), 400);
  trace.Finish(EndWith(absl::OkStatus(), 7), 401);

  ASSERT_EQ(spans_.size(), 7u);
  const Span root = Named("text_completion tiny").at(0);
  const Span attempt = Named("attempt").at(0);
  EXPECT_EQ(root.parent, Caller().span);
  EXPECT_EQ(root.kind, tracing::SpanKind::kServer);
  EXPECT_EQ(attempt.parent, root.context.span);
  for (const auto& [name, context] :
       {std::pair{"reserve", reserve}, {"decode", stream}, {"prefill", prefill}}) {
    const Span call = Named(name).at(0);
    EXPECT_EQ(call.context, context) << name;
    EXPECT_EQ(call.parent, attempt.context.span) << name;
    EXPECT_EQ(context.trace, Caller().trace);
    EXPECT_EQ(context.state, "vendor=1");
  }
  EXPECT_EQ(Named("queue").at(0).begin_us, 110);
  EXPECT_EQ(Named("queue").at(0).end_us, 200);
  auto values = Values(root);
  EXPECT_EQ(std::get<int64_t>(values["gen_ai.usage.input_tokens"]), 40);
  EXPECT_EQ(std::get<int64_t>(values["gen_ai.usage.output_tokens"]), 7);
  EXPECT_EQ(std::get<double>(values["gen_ai.response.time_to_first_chunk"]), 0.5);
  EXPECT_EQ(std::get<std::vector<std::string>>(values["gen_ai.response.finish_reasons"]),
            std::vector<std::string>{"length"});
  EXPECT_EQ(trace.trace_id(), "0af7651916cd43dd8448eb211c80319c");
}

TEST_F(RequestTraceTest, ARetryIsASecondAttemptAndAWaitBetween) {
  RequestTrace trace = Begin(Caller());
  trace.BeginReserve(ReserveOn("decode-0"), 200);
  trace.EndReserve(absl::OkStatus(), 210);
  trace.BeginStream(210);
  trace.BeginPrefill(211);
  trace.EndStream(WithLeg(absl::UnavailableError("gone"), "decode", "decode-0"), 250);
  trace.AbortPrefill("the decode leg failed", 251);
  trace.AbortDecode("the decode leg failed", 251);
  trace.BeginReserve(ReserveOn("decode-1"), 300);
  trace.Finish(EndWith(absl::OkStatus(), 7), 400);

  const std::vector<Span> attempts = Named("attempt");
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_TRUE(attempts[0].failed);
  EXPECT_EQ(attempts[0].error, "gone");
  EXPECT_EQ(attempts[0].end_us, 250);
  EXPECT_FALSE(attempts[1].failed);
  EXPECT_EQ(std::get<int64_t>(Values(attempts[1])["baton.attempt"]), 2);
  const std::vector<Span> waits = Named("queue");
  ASSERT_EQ(waits.size(), 2u);
  EXPECT_EQ(waits[1].begin_us, 250);
  EXPECT_EQ(waits[1].end_us, 300);
  const Span root = Named("text_completion tiny").at(0);
  ASSERT_EQ(root.events.size(), 1u);
  EXPECT_STREQ(root.events[0].name, "retry");
  EXPECT_EQ(std::get<std::string>(root.events[0].attributes[1].value), "gone");
}

TEST_F(RequestTraceTest, OnAColocatedChainOneCallIsTheAttempt) {
  StartGeneration start;
  start.stage0 = {"prefill-0", 1};
  start.stages = {{{"prefill-0", 1}, {0, 3}}, {{"prefill-1", 1}, {3, 6}}};
  RequestTrace trace = Begin(Caller());
  trace.BeginGeneration(start, 200);
  trace.AbortPrefill("the prefill leg failed", 250);
  const TraceContext call = trace.BeginGeneration(start, 300);
  v1::PrefillReport report;
  report.add_chunks();
  trace.EndPrefill(absl::OkStatus(), report, 310);
  trace.OnFirstToken(320);
  trace.EndStream(absl::OkStatus(), 400);
  trace.Finish(EndWith(absl::OkStatus(), 7), 401);

  EXPECT_TRUE(Named("reserve").empty());
  EXPECT_TRUE(Named("prefill").empty());
  const std::vector<Span> calls = Named("generate");
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].end_us, 250);
  auto aborted = Values(calls[0]);
  EXPECT_EQ(std::get<std::string>(aborted["baton.abort.reason"]), "the prefill leg failed");
  EXPECT_EQ(calls[1].context, call);
  EXPECT_EQ(calls[1].end_us, 400);
  auto values = Values(calls[1]);
  EXPECT_EQ(std::get<std::string>(values["rpc.service"]), "baton.v1.Prefill");
  EXPECT_EQ(std::get<std::string>(values["rpc.method"]), "Generate");
  EXPECT_EQ(std::get<int64_t>(values["baton.prefill.chunks"]), 1);
  ASSERT_EQ(calls[1].events.size(), 2u);
  EXPECT_STREQ(calls[1].events[0].name, "prompt");
  EXPECT_STREQ(calls[1].events[1].name, "first_token");
  ASSERT_EQ(Named("attempt").size(), 2u);
  auto attempt = Values(Named("attempt")[1]);
  EXPECT_EQ(std::get<std::string>(attempt["baton.decode.instance_id"]), "prefill-0");
  EXPECT_EQ(std::get<std::vector<std::string>>(attempt["baton.prefill.instance_ids"]),
            (std::vector<std::string>{"prefill-0", "prefill-1"}));
}

TEST_F(RequestTraceTest, WhatEndsEarlyEndsEverySpan) {
  RequestTrace trace = Begin(Caller());
  trace.BeginReserve(ReserveOn("decode-0"), 200);
  trace.Finish(EndWith(absl::DeadlineExceededError("late"), 0), 300);
  ASSERT_EQ(spans_.size(), 5u);  // tokenize, queue, reserve, attempt, the request.
  for (const char* name : {"reserve", "attempt", "text_completion tiny"}) {
    EXPECT_TRUE(Named(name).at(0).failed) << name;
    EXPECT_EQ(Named(name).at(0).end_us, 300) << name;
  }
  EXPECT_FALSE(
      Values(Named("text_completion tiny").at(0)).contains("gen_ai.response.time_to_first_chunk"));

  RequestTrace waiting = Begin(Caller());
  spans_.clear();
  waiting.Finish(EndWith(absl::UnavailableError("no pair"), 0), 300);
  EXPECT_TRUE(Named("queue").at(0).failed);
  EXPECT_TRUE(Named("attempt").empty());
}

TEST_F(RequestTraceTest, ARefusalIsASpan) {
  RequestTrace trace(&tracer_, Caller(), Endpoint::kChatCompletions, "tiny", 100);
  trace.Refuse(absl::ResourceExhaustedError("full"), 105);
  ASSERT_EQ(spans_.size(), 1u);
  EXPECT_EQ(spans_[0].name, "chat tiny");
  EXPECT_TRUE(spans_[0].failed);
}

TEST_F(RequestTraceTest, WhoIsNotSampledIsPassedOnAndNotRecorded) {
  RequestTrace trace = Begin(Caller(/*sampled=*/false));
  EXPECT_EQ(trace.BeginReserve(ReserveOn("decode-0"), 200), Caller(false));
  EXPECT_EQ(trace.BeginStream(210), Caller(false));
  EXPECT_EQ(trace.BeginPrefill(210), Caller(false));
  trace.Finish(EndWith(absl::OkStatus(), 7), 400);
  EXPECT_TRUE(spans_.empty());
  EXPECT_EQ(trace.trace_id(), "0af7651916cd43dd8448eb211c80319c");
}

TEST_F(RequestTraceTest, WithoutACallerATraceBegins) {
  RequestTrace trace = Begin({});
  EXPECT_EQ(trace.trace_id().size(), 32u);
  const TraceContext context = trace.BeginReserve(ReserveOn("decode-0"), 200);
  EXPECT_TRUE(context.recording());
  trace.Finish(EndWith(absl::OkStatus(), 7), 400);
  EXPECT_EQ(Named("text_completion tiny").at(0).parent, 0u);

  tracing::Tracer never(tracing::TracerOptions{0, {1, 2}}, [](const Span&) { FAIL(); });
  RequestTrace unsampled(&never, {}, Endpoint::kGenerate, "tiny", 100);
  EXPECT_FALSE(unsampled.BeginReserve(ReserveOn("decode-0"), 200).valid())
      << "there is no span that a worker could name";
}

TEST_F(RequestTraceTest, WithoutATracerThereIsNothing) {
  RequestTrace trace(nullptr, {}, Endpoint::kGenerate, "tiny", 100);
  EXPECT_EQ(trace.trace_id(), "");
  EXPECT_FALSE(trace.BeginReserve(ReserveOn("decode-0"), 200).valid());
  trace.Finish(EndWith(absl::OkStatus(), 7), 400);
}

}  // namespace
}  // namespace baton::router
