// A queue between what a process prints and its reader (line_writer.h). Standard output and
// error become pipes that a thread of the process empties: so nothing in it waits for a reader that
// stands still, be it the log, a library, or the message of a broken invariant.
#ifndef COMMON_BASE_OUTPUT_QUEUE_H_
#define COMMON_BASE_OUTPUT_QUEUE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/line_writer.h"

namespace baton {

// Once, before there are threads. What stands in the queue when abort is called still comes out,
// for kOutputFlushMs at most; of a process that is killed the last lines may be lost.
absl::Status QueueOutput(const LineWriter::DroppedText& dropped_text);

inline constexpr int64_t kOutputFlushMs = 1000;

// Waits until what was printed so far is written or dropped, for `timeout_ms` at most. For who is
// about to end the process. Nothing without QueueOutput.
void FlushOutput(int64_t timeout_ms = kOutputFlushMs);

// Lines that this process has printed and that were dropped. Any thread.
uint64_t DroppedOutputLines();

}  // namespace baton

#endif  // COMMON_BASE_OUTPUT_QUEUE_H_
