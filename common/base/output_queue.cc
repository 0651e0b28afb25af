#include "common/base/output_queue.h"

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
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace baton {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kLineBytes = size_t{64} << 10;  // A longer one is cut into several.
// The beginning of a line waits so long for its end.
constexpr int kPartialMs = 100;
constexpr long kFlushPollNs = 1'000'000;

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
      const timespec pause{0, kFlushPollNs};
      nanosleep(&pause, nullptr);
    }
  }
}

uint64_t DroppedOutputLines() {
  uint64_t lines = 0;
  for (const OutputQueue* queue : queues) lines += queue == nullptr ? 0 : queue->dropped_total();
  return lines;
}

}  // namespace baton
