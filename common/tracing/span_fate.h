// The outcomes of spans; labels of the metric baton_trace_spans_total.
#ifndef COMMON_TRACING_SPAN_FATE_H_
#define COMMON_TRACING_SPAN_FATE_H_

#include <cstddef>
#include <functional>

namespace baton::tracing {

enum class SpanFate {
  kExported,
  kQueueFull,  // The exporter could not keep up.
  kFailed,     // The collector was unreachable for too long, or refused them.
};

constexpr const char* FateLabel(SpanFate fate) {
  switch (fate) {
    case SpanFate::kExported:
      return "exported";
    case SpanFate::kQueueFull:
      return "queue_full";
    case SpanFate::kFailed:
      return "failed";
  }
  return "other";
}

// Any thread; must not block.
using CountSpans = std::function<void(SpanFate fate, size_t spans)>;

}  // namespace baton::tracing

#endif  // COMMON_TRACING_SPAN_FATE_H_
