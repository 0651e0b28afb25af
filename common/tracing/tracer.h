// Starts traces and spans, and passes ended spans to the exporter.
//
//   ActiveSpan span(tracer, "prefill", SpanKind::kServer, parent, NowUs());  // tracer may be null
//   span.Set("baton.stage", 0);
//   Call(span.ContextOr(parent));
//   span.End(NowUs(), status);
//
// Without a tracer, or if a trace is not sampled, nothing is recorded, allocated or drawn: an
// ActiveSpan is then a null pointer.
#ifndef COMMON_TRACING_TRACER_H_
#define COMMON_TRACING_TRACER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/tracing/span.h"
#include "common/tracing/trace_context.h"

namespace baton::tracing {

// Whether a trace that starts here is sampled. Decides as OpenTelemetry's TraceIdRatioBased does,
// so that every process with this ratio or a larger one samples it too. 0 <= `ratio` <= 1.
bool SampleByRatio(const TraceId& trace, double ratio);

struct TracerOptions {
  double sample_ratio = 1;    // For traces that start here; others have their creator's decision.
  uint64_t seed[2] = {0, 0};  // For the ids; random except in tests.
};

// Thread-safe.
class Tracer {
 public:
  // `take` gets every ended span, on the thread that ends it. It must not block.
  Tracer(const TracerOptions& options, std::function<void(Span)> take);

  // A new trace: its id and the sampling decision, without a span (`span` is 0).
  TraceContext NewTrace();
  uint64_t NewSpanId();

 private:
  friend class ActiveSpan;
  uint64_t Draw(uint64_t seed);

  const TracerOptions options_;
  const std::function<void(Span)> take_;
  std::atomic<uint64_t> drawn_{0};
};

// A running span, or nothing. Not thread-safe; it moves between threads together with the work that
// it times. A span that is destroyed without End is discarded.
class ActiveSpan {
 public:
  ActiveSpan() = default;
  // Empty if `tracer` is null or `parent` is not recording. `tracer` outlives the span.
  ActiveSpan(Tracer* tracer, std::string_view name, SpanKind kind, const TraceContext& parent,
             int64_t now_us);

  explicit operator bool() const { return span_ != nullptr; }

  // The span's own context, for work on its behalf; `parent` if it is empty.
  const TraceContext& ContextOr(const TraceContext& parent) const {
    return span_ == nullptr ? parent : span_->context;
  }

  void SetName(std::string name) {
    if (span_ != nullptr) span_->name = std::move(name);
  }
  // `key` and `name` are literals. Each key is set once.
  template <typename Value>
  void Set(const char* key, Value value) {
    if (span_ != nullptr) Add(key, ToValue(std::move(value)));
  }
  void AddEvent(const char* name, int64_t now_us, std::initializer_list<Attribute> attributes = {});
  void Link(const TraceContext& other);

  // Marks the span as failed: error.type, and where it failed if `status` says so. OK does nothing;
  // the first failure stays.
  void Fail(const absl::Status& status);

  // Passes the span to the exporter. Further calls do nothing.
  void End(int64_t now_us);
  void End(int64_t now_us, const absl::Status& status) {
    Fail(status);
    End(now_us);
  }

 private:
  static AttributeValue ToValue(bool value) { return value; }
  static AttributeValue ToValue(double value) { return value; }
  static AttributeValue ToValue(std::string value) { return value; }
  static AttributeValue ToValue(const char* value) { return std::string(value); }
  static AttributeValue ToValue(std::vector<std::string> value) { return value; }
  template <typename Integer>
  requires std::is_integral_v<Integer>
  static AttributeValue ToValue(Integer value) { return static_cast<int64_t>(value); }

  void Add(const char* key, AttributeValue value);

  Tracer* tracer_ = nullptr;
  std::unique_ptr<Span> span_;
};

// Records a span that has already ended.
inline void RecordSpan(Tracer* tracer, std::string_view name, const TraceContext& parent,
                       int64_t begin_us, int64_t end_us) {
  ActiveSpan(tracer, name, SpanKind::kInternal, parent, begin_us).End(end_us);
}

}  // namespace baton::tracing

#endif  // COMMON_TRACING_TRACER_H_
