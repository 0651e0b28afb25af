// A queue between what a process prints and its reader. Standard output and
// error become pipes that a thread of the process empties: so nothing in it waits for a reader that
// stands still, be it the log, a library, or the message of a broken invariant.
#ifndef COMMON_BASE_STDIO_QUEUE_H_
#define COMMON_BASE_STDIO_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"

namespace baton {

// Lines on their way to a descriptor that may be slow, stuck or gone: a pipe that is not read, a
// terminal that is paused, a full disk. Who has a line to write never waits for it. Lines stand in
// a bounded queue until a thread has written them; what finds no room, or cannot be written, is
// dropped and counted, and once lines go through again one of them says how many are missing.
//
// Rejected: a descriptor that does not block. The flag belongs to the open file, which other
// processes share, and a disk ignores it.
class LineWriter {
 public:
  // The line, with its newline, that stands in the place of `lines` that were dropped.
  using DroppedText = std::function<std::string(uint64_t lines)>;
  static constexpr size_t kQueueBytes = size_t{4} << 20;

  // Writes to a duplicate of `fd`. `dropped_text` is called on the writer's thread.
  LineWriter(int fd, DroppedText dropped_text, size_t queue_bytes = kQueueBytes);
  // Lets go of what is not written: see AtRest. The thread ends with the write that it is in, which
  // may be never.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Any thread; never waits. `line` ends with a newline.
  void Write(std::string line);
  // Whether all lines so far are written or dropped. Any thread, and signal handlers.
  bool AtRest() const;
  uint64_t dropped_total() const;  // Likewise.

 private:
  struct State;
  const std::shared_ptr<State> state_;  // The thread has the other reference.
};

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

#endif  // COMMON_BASE_STDIO_QUEUE_H_
