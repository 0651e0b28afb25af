// What a stream's reader has read and the loop has not heard yet. So neither thread has to wake the
// other for each message. Rejected: the next read only after the loop has handled the last message.
#ifndef SERVICES_ROUTER_LEGS_READ_AHEAD_H_
#define SERVICES_ROUTER_LEGS_READ_AHEAD_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"

namespace baton::router {

// The reader adds, the loop takes. At most one task of a stream waits in the loop's mailbox: a fast
// worker can't fill it.
template <typename Message>
class ReadAhead {
 public:
  struct Added {
    bool first = false;   // Post a task that takes.
    bool paused = false;  // Don't read on: the loop does, when it has taken.
  };
  Added Add(Message message) {
    MutexLock lock(&mutex_);
    const bool first = unheard_.empty();
    unheard_.push_back(std::move(message));
    paused_ = unheard_.size() >= kMost;
    return {first, paused_};
  }
  // Swaps what is there with `messages`, which is empty. True: the next read is the caller's.
  bool Take(std::vector<Message>& messages) {
    MutexLock lock(&mutex_);
    messages.swap(unheard_);
    return std::exchange(paused_, false);
  }
  // The loop has stopped.
  void Clear() {
    MutexLock lock(&mutex_);
    unheard_.clear();
  }

 private:
  static constexpr size_t kMost = 16;

  Mutex mutex_;
  std::vector<Message> unheard_ ABSL_GUARDED_BY(mutex_);
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_LEGS_READ_AHEAD_H_
