#include "common/base/stdio_queue.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/sync.h"

namespace baton {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kLineBytes = size_t{64} << 10;  // A longer one is cut into several.
// The beginning of a line waits so long for its end.
constexpr int kPartialMs = 100;
constexpr long kFlushPollNs = 1'000'000;
// Who prints wakes the reader no more often than so, unless much is printed.
constexpr long kGatherNs = 1'000'000;
constexpr ssize_t kMuchBytes = ssize_t{8} << 10;

void Nap(long ns) {
  const timespec pause{0, ns};
  nanosleep(&pause, nullptr);
}

bool SameFile(int a, int b) {
  struct stat of_a {};
  struct stat of_b {};
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

// One file that lines go to, and the pipe that stands in its place. Lives as long as the process.
class OutputQueue {
 public:
  OutputQueue(int file, int read_end, const LineWriter::DroppedText& dropped_text)
      : writer_(file, dropped_text), read_end_(read_end) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] { Run(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  // `busy_` is true before the pipe is empty, and false when the writer has what was in it.
  bool AtRest() const {
    int unread = 0;
    return ioctl(read_end_, FIONREAD, &unread) == 0 && unread == 0 && !busy_ && writer_.AtRest();
  }
  uint64_t dropped_total() const { return writer_.dropped_total(); }

 private:
  void Run() {
    pthread_setname_np(pthread_self(), "baton-output");
    std::array<char, kReadBytes> buffer;
    std::string line;
    while (true) {
      pollfd readable = {read_end_, POLLIN, 0};
      const int ready = poll(&readable, 1, line.empty() ? -1 : kPartialMs);
      if (ready < 0) continue;  // EINTR.
      if (ready == 0) writer_.Write(std::exchange(line, ""));
      busy_ = ready > 0;
      if (ready == 0) continue;
      const ssize_t got = read(read_end_, buffer.data(), buffer.size());
      if (got == 0) return;  // No process can print any more.
      for (const char byte :
           std::string_view(buffer.data(), got > 0 ? static_cast<size_t>(got) : 0)) {
        line.push_back(byte);
        if (byte == '\n' || line.size() == kLineBytes) writer_.Write(std::exchange(line, ""));
      }
      busy_ = !line.empty();
      if (got < kMuchBytes) Nap(kGatherNs);
    }
  }

  LineWriter writer_;
  const int read_end_;
  std::atomic<bool> busy_{false};
};

// Set before threads start, and never destroyed: threads print to the end.
std::array<OutputQueue*, 2> queues{};

absl::Status Error(const char* call) { return absl::ErrnoToStatus(errno, call); }

void FlushAndGoOn(int) { FlushOutput(); }

}  // namespace

absl::Status QueueOutput(const LineWriter::DroppedText& dropped_text) {
  // If both are one file, they share a queue, so that lines stay in order.
  const bool one = SameFile(STDOUT_FILENO, STDERR_FILENO);
  for (const int file : {STDERR_FILENO, STDOUT_FILENO}) {
    if (file == STDOUT_FILENO && one) {
      if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return Error("dup2");
      break;
    }
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) return Error("pipe");
    queues.at(file == STDERR_FILENO ? 0 : 1) = new OutputQueue(file, ends[0], dropped_text);
    const int replaced = dup2(ends[1], file);
    close(ends[1]);
    if (replaced < 0) return Error("dup2");
  }
  // The message of a broken invariant is on its way when abort is called.
  struct sigaction action {};
  action.sa_handler = FlushAndGoOn;
  action.sa_flags = SA_RESETHAND;
  return sigaction(SIGABRT, &action, nullptr) == 0 ? absl::OkStatus() : Error("sigaction");
}

// Only what a signal handler may do.
void FlushOutput(int64_t timeout_ms) {
  const int64_t until_us = NowUs() + timeout_ms * 1000;
  for (const OutputQueue* queue : queues) {
    while (queue != nullptr && !queue->AtRest() && NowUs() < until_us) {
      Nap(kFlushPollNs);
    }
  }
}

uint64_t DroppedOutputLines() {
  uint64_t lines = 0;
  for (const OutputQueue* queue : queues) lines += queue == nullptr ? 0 : queue->dropped_total();
  return lines;
}

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
