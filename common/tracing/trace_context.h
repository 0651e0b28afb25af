// Where in which trace something happens, and how that is written in headers: W3C Trace Context,
// level 1 (traceparent and tracestate). Pure; nothing here looks at a clock or draws a number.
#ifndef COMMON_TRACING_TRACE_CONTEXT_H_
#define COMMON_TRACING_TRACE_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton::tracing {

// Names of headers and of gRPC metadata.
inline constexpr char kTraceparent[] = "traceparent";
inline constexpr char kTracestate[] = "tracestate";
// What is passed on of a tracestate; the standard wants no less.
inline constexpr size_t kMaxTracestateBytes = 512;

struct TraceId {
  uint64_t high = 0;
  uint64_t low = 0;

  bool valid() const { return (high | low) != 0; }
  friend bool operator==(const TraceId&, const TraceId&) = default;
};

// A place in a trace that spans may have as their parent. Without a valid trace id it is "no trace"
// and costs nothing to pass on.
struct TraceContext {
  TraceId trace;
  uint64_t span = 0;     // 0 only without a trace.
  bool sampled = false;  // Whoever began the trace wants its spans recorded.
  bool remote = false;   // The span is another process's.
  std::string state;     // tracestate, passed on as it came.

  bool valid() const { return trace.valid(); }
  bool recording() const { return sampled && valid(); }
  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};

// 32 and 16 lower-case hexadecimal digits; 16 and 8 bytes, first the highest.
std::string Hex(const TraceId& trace);
std::string Hex(uint64_t span);
std::string Bytes(const TraceId& trace);
std::string Bytes(uint64_t span);

// The context that a caller sent, each header with all values that it came with. "No trace" if
// there is not exactly one traceparent or it is not valid to the letter: the standard wants a new
// trace then, without the caller's tracestate. A tracestate that is not valid is dropped alone.
TraceContext ExtractTraceContext(const std::vector<std::string_view>& traceparents,
                                 const std::vector<std::string_view>& tracestates);
// The same of one value each; empty: there is none.
inline TraceContext ParseTraceContext(std::string_view traceparent, std::string_view tracestate) {
  if (traceparent.empty()) return {};
  return ExtractTraceContext({traceparent}, {tracestate});
}

// "00-<trace>-<span>-01". `context` must be valid.
std::string Traceparent(const TraceContext& context);

}  // namespace baton::tracing

#endif  // COMMON_TRACING_TRACE_CONTEXT_H_
