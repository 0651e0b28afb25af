// The record of one piece of work. Plain values; times are microseconds of NowUs()'s clock, which
// the exporter converts to Unix time.
#ifndef COMMON_TRACING_SPAN_H_
#define COMMON_TRACING_SPAN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/tracing/trace_context.h"

namespace baton::tracing {

using AttributeValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

struct Attribute {
  const char* key = "";  // A literal from the conventions, never a request's text.
  AttributeValue value;
};

enum class SpanKind : uint8_t {
  kInternal = 1,  // The numbers are OTLP's.
  kServer = 2,
  kClient = 3,
};

struct SpanEvent {
  const char* name = "";
  int64_t time_us = 0;
  std::vector<Attribute> attributes;
};

// Another span that was processed together with this one.
struct SpanLink {
  TraceId trace;
  uint64_t span = 0;
};

struct Span {
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  TraceContext context;  // The span's own.
  uint64_t parent = 0;   // 0: the trace's root.
  bool remote_parent = false;
  int64_t begin_us = 0;
  int64_t end_us = 0;
  std::vector<Attribute> attributes;
  std::vector<SpanEvent> events;
  std::vector<SpanLink> links;
  bool failed = false;
  std::string error;  // A failed span's error, for people.
};

// The outcomes of spans; labels of the metric baton_trace_spans_total.
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

#endif  // COMMON_TRACING_SPAN_H_
