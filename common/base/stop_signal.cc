#include "common/base/stop_signal.h"

#include <signal.h>

#include <atomic>

namespace baton {
namespace {

std::atomic<bool>& Requested() {
  static std::atomic<bool> requested{false};
  return requested;
}

}  // namespace

bool StopRequested() {
  if (Requested().load(std::memory_order_relaxed)) return true;
  sigset_t pending;
  return sigpending(&pending) == 0 &&
         (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1);
}

void NoteStopRequested() { Requested().store(true, std::memory_order_relaxed); }

}  // namespace baton
