// A real run's timeline, from the spans that its stages wrote (--otlp-traces-file, or a Collector's
// file exporter): "prefill chunk" of every stage. Other spans are counted and left alone.
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
  int64_t spans = 0;     // All, of every kind.
  int requests = 0;      // That have a chunk in it; numbered by when their first one began.
  int64_t begin_us = 0;  // Of the first chunk, Unix time.
};

// Lines of OTLP's JSON, of whatever processes and in whatever order. Rows are chains by name, and
// in each its stages and their ranks. What is no such line is INVALID_ARGUMENT and names `file`,
// the line and the field; a file without any chunk is NOT_FOUND.
absl::StatusOr<SpanRun> ReadSpans(std::istream& text, const std::string& file,
                                  const TimelineWindow& window);

}  // namespace baton::timeline

#endif  // SERVICES_TIMELINE_SPAN_FILE_H_
