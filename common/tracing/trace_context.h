// A position in a trace, and its form in headers: W3C Trace Context, level 1 (traceparent and
// tracestate). Pure: no clock, no random numbers.
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
// The length of tracestate that is forwarded; the standard requires at least this.
inline constexpr size_t kMaxTracestateBytes = 512;

struct TraceId {
  uint64_t high = 0;
  uint64_t low = 0;

  bool valid() const { return (high | low) != 0; }
  friend bool operator==(const TraceId&, const TraceId&) = default;
};

// A span that others may have as their parent. Without a valid trace id it means "no trace" and
// costs nothing to pass on.
struct TraceContext {
  TraceId trace;
  uint64_t span = 0;     // 0 only without a trace.
  bool sampled = false;  // The trace's creator wants its spans recorded.
  bool remote = false;   // The span belongs to another process.
  std::string state;     // tracestate, forwarded unchanged.

  bool valid() const { return trace.valid(); }
  bool recording() const { return sampled && valid(); }
  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};

// As 32 or 16 lower-case hexadecimal digits, and as 16 or 8 bytes, the highest first.
std::string Hex(const TraceId& trace);
std::string Hex(uint64_t span);
std::string Bytes(const TraceId& trace);
std::string Bytes(uint64_t span);

// The context that a caller sent; each header with all of its values. "No trace" unless there is
// exactly one traceparent and it is strictly valid: the standard then requires a new trace without
// the caller's tracestate. An invalid tracestate alone is dropped.
TraceContext ExtractTraceContext(const std::vector<std::string_view>& traceparents,
                                 const std::vector<std::string_view>& tracestates);
// The same for one value each; empty means none.
inline TraceContext ParseTraceContext(std::string_view traceparent, std::string_view tracestate) {
  if (traceparent.empty()) return {};
  return ExtractTraceContext({traceparent}, {tracestate});
}

// "00-<trace>-<span>-01". `context` must be valid.
std::string Traceparent(const TraceContext& context);

}  // namespace baton::tracing

#endif  // COMMON_TRACING_TRACE_CONTEXT_H_
