#include "common/tracing/tracer.h"

#include <algorithm>
#include <utility>

#include "common/base/random.h"
#include "common/base/status.h"

namespace baton::tracing {
namespace {

constexpr size_t kMaxErrorBytes = 512;  // A status may quote what a client sent.

}  // namespace

// Compares the low half's lower 63 bits, shifted, as OpenTelemetry's SDKs do.
bool SampleByRatio(const TraceId& trace, double ratio) {
  if (ratio >= 1) return true;
  constexpr double kRange = 9223372036854775808.0;  // 2^63
  return trace.low >> 1 < static_cast<uint64_t>(ratio * kRange);
}

Tracer::Tracer(const TracerOptions& options, std::function<void(Span)> take)
    : options_(options), take_(std::move(take)) {}

uint64_t Tracer::Draw(uint64_t seed) {
  const uint64_t drawn = Mix64(seed + drawn_.fetch_add(1, std::memory_order_relaxed));
  return drawn == 0 ? 1 : drawn;
}

TraceContext Tracer::NewTrace() {
  TraceContext context;
  context.trace = {Draw(options_.seed[0]), Draw(options_.seed[1])};
  context.sampled = SampleByRatio(context.trace, options_.sample_ratio);
  return context;
}

uint64_t Tracer::NewSpanId() { return Draw(options_.seed[0] ^ options_.seed[1]); }

ActiveSpan::ActiveSpan(Tracer* tracer, std::string_view name, SpanKind kind,
                       const TraceContext& parent, int64_t now_us) {
  if (tracer == nullptr || !parent.recording()) return;
  tracer_ = tracer;
  span_ = std::make_unique<Span>();
  span_->name = name;
  span_->kind = kind;
  span_->context = parent;
  span_->context.span = tracer->NewSpanId();
  span_->context.remote = false;
  span_->parent = parent.span;
  span_->remote_parent = parent.remote;
  span_->begin_us = now_us;
}

void ActiveSpan::Add(const char* key, AttributeValue value) {
  span_->attributes.push_back({key, std::move(value)});
}

void ActiveSpan::AddEvent(const char* name, int64_t now_us,
                          std::initializer_list<Attribute> attributes) {
  if (span_ != nullptr) span_->events.push_back({name, now_us, attributes});
}

void ActiveSpan::Link(const TraceContext& other) {
  if (span_ != nullptr) span_->links.push_back({other.trace, other.span});
}

void ActiveSpan::Fail(const absl::Status& status) {
  if (span_ == nullptr || status.ok() || span_->failed) return;
  span_->failed = true;
  span_->error = std::string(status.message().substr(0, kMaxErrorBytes));
  Set("error.type", absl::StatusCodeToString(status.code()));
  if (auto leg = LegOf(status); leg.has_value()) Set("baton.error.leg", *std::move(leg));
  if (auto instance = InstanceOf(status); instance.has_value() && !instance->empty()) {
    Set("baton.error.instance_id", *std::move(instance));
  }
}

void ActiveSpan::End(int64_t now_us) {
  if (span_ == nullptr) return;
  // All times are from one steady clock, but may be taken on two threads.
  span_->end_us = std::max(now_us, span_->begin_us);
  tracer_->take_(std::move(*std::exchange(span_, nullptr)));
}

}  // namespace baton::tracing
