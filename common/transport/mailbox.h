// Closures from any thread to the data thread: a bounded vector under a mutex, and an eventfd that
// an epoll loop can wait on beside UCX's descriptor (which is why common/base/event_loop.h, with
// its condition variable, does not serve here).
#ifndef COMMON_TRANSPORT_MAILBOX_H_
#define COMMON_TRANSPORT_MAILBOX_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"

namespace baton {

class Mailbox {
 public:
  explicit Mailbox(size_t limit);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Readable while closures wait; -1 if the system gave none.
  int event_fd() const { return event_fd_; }

  // Moves from `task` and returns true, or leaves it alone and returns false: full or closed.
  [[nodiscard]] bool Push(std::function<void()>& task);

  // The same for the few tasks that must get through a full mailbox (disconnect, shutdown): only
  // false if closed.
  [[nodiscard]] bool PushControl(std::function<void()> task);

  // Everything that waits, in order.
  std::vector<std::function<void()>> Take();

  // The same, and refuses what comes later.
  std::vector<std::function<void()>> Close();

 private:
  void PushLocked(std::function<void()> task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<std::function<void()>> TakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t limit_;
  const int event_fd_;
  Mutex mutex_;
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton

#endif  // COMMON_TRANSPORT_MAILBOX_H_
