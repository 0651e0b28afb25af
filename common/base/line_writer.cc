#include "common/base/line_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"

namespace baton {

struct LineWriter::State {
  State(int descriptor, DroppedText text, size_t bytes)
      : fd(fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)),
        dropped_text(std::move(text)),
        queue_bytes_max(bytes) {}
  ~State() {
    if (fd >= 0) close(fd);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void Run();
  void WriteBatch(const std::deque<std::string>& batch);
  void TellDropped();
  bool WriteLine(const std::string& line);

  const int fd;
  const DroppedText dropped_text;
  const size_t queue_bytes_max;

  std::atomic<uint64_t> unwritten{0};  // Lines that are neither written nor dropped.
  std::atomic<uint64_t> dropped_total{0};

  Mutex mutex;
  std::deque<std::string> lines ABSL_GUARDED_BY(mutex);
  size_t queued_bytes ABSL_GUARDED_BY(mutex) = 0;
  // Since the thread took the queue last: all of them came behind its lines.
  uint64_t overflowed ABSL_GUARDED_BY(mutex) = 0;
  bool stopping ABSL_GUARDED_BY(mutex) = false;

  // The thread's own.
  uint64_t untold = 0;  // Dropped, and no line says so.
  bool torn = false;    // The last line was cut off before its newline.
};

LineWriter::LineWriter(int fd, DroppedText dropped_text, size_t queue_bytes)
    : state_(std::make_shared<State>(fd, std::move(dropped_text), queue_bytes)) {
  // Signals are for the threads that wait for them; SIGPIPE is for none.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([state = state_] { state->Run(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

LineWriter::~LineWriter() {
  MutexLock lock(&state_->mutex);
  state_->stopping = true;
}

void LineWriter::Write(std::string line) {
  MutexLock lock(&state_->mutex);
  const size_t bytes = line.size() + sizeof(std::string);
  // Once a line is missing all are, until the thread takes the queue: a shorter one that still
  // found room would stand before the line that says so.
  if (state_->overflowed > 0 || state_->queued_bytes + bytes > state_->queue_bytes_max) {
    ++state_->overflowed;
    ++state_->dropped_total;
    return;
  }
  ++state_->unwritten;
  state_->queued_bytes += bytes;
  state_->lines.push_back(std::move(line));
}

bool LineWriter::AtRest() const { return state_->unwritten == 0; }

uint64_t LineWriter::dropped_total() const { return state_->dropped_total; }

void LineWriter::State::Run() {
  pthread_setname_np(pthread_self(), "baton-output");
  while (true) {
    std::deque<std::string> batch;
    uint64_t behind = 0;
    {
      MutexLock lock(&mutex);
      mutex.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
        return !lines.empty() || overflowed > 0 || stopping;
      });
      if (stopping) return;
      batch.swap(lines);
      queued_bytes = 0;
      behind = std::exchange(overflowed, 0);
    }
    WriteBatch(batch);
    untold += behind;
    TellDropped();
  }
}

void LineWriter::State::WriteBatch(const std::deque<std::string>& batch) {
  for (const std::string& line : batch) {
    TellDropped();
    // While there is no room for the line that says so there is none for another one.
    if (untold > 0 || !WriteLine(line)) {
      ++untold;
      ++dropped_total;
    }
    --unwritten;
  }
}

void LineWriter::State::TellDropped() {
  if (untold > 0 && WriteLine(dropped_text(untold))) untold = 0;
}

// False: it was not written, or only in part.
bool LineWriter::State::WriteLine(const std::string& line) {
  const std::string apart = torn ? "\n" + line : "";
  std::string_view left = torn ? apart : line;
  while (!left.empty()) {
    const ssize_t written = write(fd, left.data(), left.size());
    if (written > 0) {
      left.remove_prefix(static_cast<size_t>(written));
      torn = !left.empty();
    } else if (written < 0 && errno == EAGAIN) {
      // A process that shares the descriptor does not want it to block.
      pollfd room = {fd, POLLOUT, 0};
      poll(&room, 1, -1);
    } else if (written == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace baton
