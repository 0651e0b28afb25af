#include "services/prefill/stage/stage_trace.h"

#include <algorithm>
#include <utility>

namespace baton::prefill {
namespace {

using tracing::ActiveSpan;
using tracing::SpanKind;
using tracing::TraceContext;

// A chunk's links to the others of its plan; a plan may hold thousands.
constexpr size_t kMaxLinks = 16;

void LinkAll(std::vector<ActiveSpan>& spans) {
  const size_t count = std::min(spans.size(), kMaxLinks + 1);
  for (size_t i = 0; i < spans.size(); ++i) {
    for (size_t j = 0; j < count; ++j) {
      if (i != j) spans[i].Link(spans[j].ContextOr({}));
    }
  }
}

}  // namespace

void StageTrace::Open(uint64_t attempt_id, const TraceContext& parent) {
  if (parent.recording()) hand_offs_[attempt_id].parent = parent;
}

void StageTrace::BeginCompute(const RunCompute& action,
                              const std::vector<PromptContextPtr>& prompts, int64_t now_us) {
  chunks_.clear();
  // Turns come in the plans' order; those without chunks have none here.
  const auto arrived = arrived_us_.find(action.number);
  const int64_t arrived_us = arrived == arrived_us_.end() ? now_us : arrived->second;
  arrived_us_.erase(arrived_us_.begin(), arrived_us_.upper_bound(action.number));
  int plan_tokens = 0;
  for (const RunCompute::Item& item : action.items) plan_tokens += item.item.token_count;
  for (size_t i = 0; i < action.items.size(); ++i) {
    if (action.items[i].generated > 0) continue;  // A decode step: too short and too many.
    ActiveSpan span(tracer_, "prefill chunk", SpanKind::kInternal, prompts[i]->trace, now_us);
    if (!span) continue;
    const PlanItem& item = action.items[i].item;
    span.Set("baton.stage", stage_);
    span.Set("baton.plan.number", action.number);
    span.Set("baton.plan.requests", action.items.size());
    span.Set("baton.plan.tokens", plan_tokens);
    span.Set("baton.plan.lead_seconds", static_cast<double>(now_us - arrived_us) * 1e-6);
    span.Set("baton.chunk.token_begin", item.token_begin);
    span.Set("baton.chunk.tokens", item.token_count);
    span.Set("baton.chunk.final", item.final);
    span.Set("baton.chunk.wait_seconds", static_cast<double>(action.wait_us) * 1e-6);
    chunks_.push_back(std::move(span));
  }
  LinkAll(chunks_);
}

void StageTrace::EndCompute(const ComputeFinished& event, int64_t now_us) {
  for (ActiveSpan& span : chunks_) {
    span.Set("baton.chunk.compute_seconds", static_cast<double>(event.compute_us) * 1e-6);
    span.End(now_us, event.status);
  }
  chunks_.clear();
}

void StageTrace::BeginSend(const SendKv& action, int64_t now_us) {
  const auto found = hand_offs_.find(action.attempt_id);
  if (found == hand_offs_.end()) return;
  HandOff& hand_off = found->second;
  hand_off.pages += static_cast<int>(action.pages.size());
  if (hand_off.span) return;
  hand_off.span = ActiveSpan(tracer_, "kv hand-off", SpanKind::kInternal, hand_off.parent, now_us);
  hand_off.span.Set("baton.stage", stage_);
  hand_off.span.Set("baton.decode.instance_id", action.ticket.decode.id);
}

void StageTrace::Close(const RequestClosed& closed, int64_t now_us) {
  const auto found = hand_offs_.find(closed.attempt_id);
  if (found == hand_offs_.end()) return;
  HandOff& hand_off = found->second;
  hand_off.span.Set("baton.kv.pages", hand_off.pages);
  hand_off.span.Set("baton.kv.bytes", closed.kv_bytes);
  hand_off.span.Set("baton.kv.exposed_seconds", static_cast<double>(closed.kv_exposed_us) * 1e-6);
  hand_off.span.End(now_us, closed.status);
  hand_offs_.erase(found);
}

void StageTrace::EndEpoch(const absl::Status& reason, int64_t now_us) {
  for (auto& [attempt_id, hand_off] : hand_offs_) {
    hand_off.span.Set("baton.kv.pages", hand_off.pages);
    hand_off.span.End(now_us, reason);
  }
  hand_offs_.clear();
  arrived_us_.clear();
}

}  // namespace baton::prefill
