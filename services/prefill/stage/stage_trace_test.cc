#include "services/prefill/stage/stage_trace.h"

#include <gtest/gtest.h>

#include <memory>
#include <string_view>
#include <variant>

namespace baton::prefill {
namespace {

using tracing::Span;
using tracing::TraceContext;

class StageTraceTest : public testing::Test {
 protected:
  StageTraceTest()
      : tracer_(tracing::TracerOptions{1, {1, 2}},
                [this](Span span) { spans_.push_back(std::move(span)); }),
        trace_(&tracer_, /*stage=*/1) {}

  static TraceContext Context(uint64_t trace, bool sampled = true) {
    TraceContext context;
    context.trace = {trace, 1};
    context.span = 9;
    context.sampled = sampled;
    return context;
  }
  static PromptContextPtr Prompt(const TraceContext& context) {
    v1::SamplingParams params;
    params.set_seed(1);
    params.set_max_tokens(1);
    auto sampler = TokenSampler::Create(params, {}, 256);
    return std::make_shared<const PromptContext>(
        PromptContext{{}, {}, *std::move(sampler), context});
  }
  // A plan with one chunk for each of `contexts`.
  void Begin(const std::vector<TraceContext>& contexts, int64_t now_us) {
    RunCompute action;
    action.number = 5;
    action.wait_us = 2'000'000;
    std::vector<PromptContextPtr> prompts;
    for (const TraceContext& context : contexts) {
      action.items.push_back({{context.trace.high, 16, 8, true}, {}});
      prompts.push_back(Prompt(context));
    }
    trace_.BeginCompute(action, prompts, now_us);
  }
  static SendKv Send(uint64_t attempt_id, int pages) {
    SendKv send;
    send.attempt_id = attempt_id;
    send.ticket.decode = {"decode-0", 1};
    send.pages.resize(static_cast<size_t>(pages));
    return send;
  }

  std::vector<Span> spans_;
  tracing::Tracer tracer_;
  StageTrace trace_;
};

TEST_F(StageTraceTest, ChunksOfOnePlanHaveSpansInTheirOwnTraces) {
  Begin({Context(1), Context(2), Context(3, /*sampled=*/false), Context(4)}, 100);
  EXPECT_TRUE(spans_.empty());
  trace_.EndCompute(ComputeFinished{}, 200);
  ASSERT_EQ(spans_.size(), 3u) << "one of four is not sampled";
  for (const Span& span : spans_) {
    EXPECT_EQ(span.name, "prefill chunk");
    EXPECT_EQ(span.parent, 9u);
    EXPECT_EQ(span.begin_us, 100);
    EXPECT_EQ(span.end_us, 200);
    ASSERT_EQ(span.links.size(), 2u) << "to the other recorded ones";
    for (const tracing::SpanLink& link : span.links) EXPECT_NE(link.trace, span.context.trace);
  }
  EXPECT_EQ(spans_[0].context.trace.high, 1u);
  EXPECT_EQ(spans_[1].links[0].span, spans_[0].context.span);
}

double LeadSeconds(const Span& span) {
  for (const auto& [key, value] : span.attributes) {
    if (std::string_view(key) == "baton.plan.lead_seconds") return std::get<double>(value);
  }
  return -1;
}

TEST_F(StageTraceTest, AChunkSaysHowLongItsPlanWasThere) {
  trace_.PlanArrived(4, 1'000'000);  // Without chunks.
  trace_.PlanArrived(5, 2'000'000);
  trace_.PlanArrived(6, 2'500'000);
  Begin({Context(1), Context(2)}, 5'000'000);  // Plan 5.
  trace_.EndCompute(ComputeFinished{}, 6'000'000);
  ASSERT_EQ(spans_.size(), 2u);
  for (const Span& span : spans_) EXPECT_DOUBLE_EQ(LeadSeconds(span), 3);
  Begin({Context(1)}, 7'000'000);
  trace_.EndCompute(ComputeFinished{}, 8'000'000);
  EXPECT_EQ(LeadSeconds(spans_.back()), 0) << "plan 5 is known no more";
  trace_.PlanArrived(5, 9'000'000);
  trace_.EndEpoch(absl::CancelledError("the epoch is over"), 9'000'000);
  Begin({Context(1)}, 10'000'000);
  trace_.EndCompute(ComputeFinished{}, 10'000'000);
  EXPECT_EQ(LeadSeconds(spans_.back()), 0) << "nor those of another epoch";
}

TEST_F(StageTraceTest, LinksAreBounded) {
  std::vector<TraceContext> many;
  for (uint64_t i = 1; i <= 100; ++i) many.push_back(Context(i));
  Begin(many, 100);
  trace_.EndCompute(ComputeFinished{}, 200);
  ASSERT_EQ(spans_.size(), 100u);
  for (const Span& span : spans_) EXPECT_LE(span.links.size(), 17u);
}

TEST_F(StageTraceTest, AFailedComputationFailsItsChunks) {
  Begin({Context(1)}, 100);
  ComputeFinished failed;
  failed.status = absl::InternalError("oops");
  trace_.EndCompute(failed, 200);
  ASSERT_EQ(spans_.size(), 1u);
  EXPECT_TRUE(spans_[0].failed);
}

TEST_F(StageTraceTest, AHandOffLastsFromTheFirstPageToTheEnd) {
  trace_.Open(1, Context(1));
  trace_.Open(2, Context(2, /*sampled=*/false));
  trace_.BeginSend(Send(1, 3), 100);
  trace_.BeginSend(Send(2, 3), 110);
  trace_.BeginSend(Send(1, 2), 120);
  RequestClosed closed;
  closed.attempt_id = 1;
  closed.kv_bytes = 4096;
  trace_.Close(closed, 300);
  trace_.Close(closed, 400);  // Known no more.
  closed.attempt_id = 2;
  trace_.Close(closed, 400);
  ASSERT_EQ(spans_.size(), 1u);
  EXPECT_EQ(spans_[0].name, "kv hand-off");
  EXPECT_EQ(spans_[0].begin_us, 100);
  EXPECT_EQ(spans_[0].end_us, 300);
  int64_t pages = 0;
  for (const auto& [key, value] : spans_[0].attributes) {
    if (std::string_view(key) == "baton.kv.pages") pages = std::get<int64_t>(value);
  }
  EXPECT_EQ(pages, 5);
}

TEST_F(StageTraceTest, TheEpochsEndIsEverythingsEnd) {
  trace_.Open(1, Context(1));
  trace_.Open(2, Context(2));
  trace_.BeginSend(Send(1, 3), 100);
  trace_.EndEpoch(absl::CancelledError("the epoch is over"), 200);
  ASSERT_EQ(spans_.size(), 1u) << "the other had nothing to hand over yet";
  EXPECT_TRUE(spans_[0].failed);
  trace_.BeginSend(Send(1, 3), 300);
  trace_.EndEpoch(absl::CancelledError("again"), 400);
  EXPECT_EQ(spans_.size(), 1u);
}

}  // namespace
}  // namespace baton::prefill
