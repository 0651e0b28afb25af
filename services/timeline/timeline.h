// What stages computed when: the rows of a picture, whoever recorded them. Microseconds are from
// the record's beginning.
#ifndef SERVICES_TIMELINE_TIMELINE_H_
#define SERVICES_TIMELINE_TIMELINE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace baton::timeline {

// One plan's computation on a stage, and whose tokens it holds.
struct ComputeRecord {
  struct Item {
    int request = 0;  // Numbered from 0.
    int token_begin = 0;
    int token_count = 0;
    bool operator==(const Item&) const = default;
  };
  int64_t begin_us = 0;
  int64_t end_us = 0;
  std::vector<Item> items;
};

struct Row {
  std::string name;  // "chain 0, stage 1"
  std::vector<ComputeRecord> computes;
};

struct Timeline {
  std::vector<std::vector<Row>> chains;  // Rows of a chain stand together.
  bool full = false;                     // It has left out what came behind.
};

// Which computations are kept: those that begin in [from_us, to_us), until those of all stages
// together have `limit` chunks.
struct TimelineWindow {
  int64_t from_us = 0;
  int64_t to_us = 0;
  int limit = 0;
};

// A picture of so many chunks is a file of about two megabytes.
inline constexpr int kTimelineChunks = 8000;

// Microseconds from options' milliseconds; a length of 0: to the end.
TimelineWindow WindowOfMs(int64_t from_ms, int64_t length_ms);

}  // namespace baton::timeline

#endif  // SERVICES_TIMELINE_TIMELINE_H_
