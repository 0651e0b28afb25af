// What stages computed and when: the rows of a picture, from a simulated or a real run, and the
// picture. Microseconds are from the record's beginning.
#ifndef SERVICES_TIMELINE_TIMELINE_H_
#define SERVICES_TIMELINE_TIMELINE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace baton::timeline {

// One plan's computation on a stage, and the requests of its tokens.
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
  std::vector<std::vector<Row>> chains;  // The rows of each chain.
  bool full = false;                     // Later computations were left out.
};

// Which computations are kept: those that start in [from_us, to_us), until those of all stages
// together have `limit` chunks.
struct TimelineWindow {
  int64_t from_us = 0;
  int64_t to_us = 0;
  int limit = 0;
};

// A picture of so many chunks is a file of about two megabytes.
inline constexpr int kTimelineChunks = 8000;

// The window by options in milliseconds; a length of 0 means up to the end.
TimelineWindow WindowOfMs(int64_t from_ms, int64_t length_ms);

// A picture of a run: stages are rows, time goes to the right, and every chunk is a box in its
// request's colour. One SVG file without scripts or references, for any browser; a box shows its
// details under the pointer. TimelineWindow bounds the file's size. `title` is written above the
// picture, with a note on what the window left out.
std::string TimelineSvg(const Timeline& timeline, const TimelineWindow& window,
                        const std::string& title);

}  // namespace baton::timeline

#endif  // SERVICES_TIMELINE_TIMELINE_H_
