// A real run's timeline, from the spans that its stages wrote (--otlp-traces-file, or a Collector's
// file exporter): the span "prefill chunk" of every stage. Other spans are counted and ignored.
#ifndef SERVICES_TIMELINE_SPAN_FILE_H_
#define SERVICES_TIMELINE_SPAN_FILE_H_

#include <cstdint>
#include <istream>
#include <string>

#include "absl/status/statusor.h"
#include "services/timeline/timeline.h"

namespace baton::timeline {

struct SpanRun {
  Timeline timeline;
  int64_t spans = 0;     // All spans, of every kind.
  int requests = 0;      // Those with a chunk in it; numbered by the start of their first chunk.
  int64_t begin_us = 0;  // The start of the first chunk, Unix time.
};

// Reads lines of OTLP's JSON, of any processes in any order. Rows are sorted by chain name, then by
// stage and rank. INVALID_ARGUMENT names `file`, the line and the field of a malformed line;
// NOT_FOUND if the file has no chunk.
absl::StatusOr<SpanRun> ReadSpans(std::istream& text, const std::string& file,
                                  const TimelineWindow& window);

}  // namespace baton::timeline

#endif  // SERVICES_TIMELINE_SPAN_FILE_H_
