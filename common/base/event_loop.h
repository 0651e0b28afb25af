// A thread that owns a state machine: closures posted from any thread run on it one at a time, in
// order, and timers fire on it. This is the only way that a shell touches its core, so cores need
// no locks.
#ifndef COMMON_BASE_EVENT_LOOP_H_
#define COMMON_BASE_EVENT_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/sync.h"

namespace baton {

class EventLoop {
 public:
  // `name` is the thread's name (15 characters are kept). The mailbox holds at most
  // `mailbox_limit` closures.
  explicit EventLoop(std::string name, size_t mailbox_limit = 1 << 16);
  ~EventLoop();  // Stops and joins.
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls `on_wake(now_us)` on the loop's thread whenever the time that the last call returned
  // comes (kNeverUs: don't) and after each batch of closures. Set before Start.
  void SetWakeHandler(std::function<int64_t(int64_t now_us)> on_wake) {
    on_wake_ = std::move(on_wake);
  }

  void Start();

  // Runs what was posted before the call, then ends the thread. Idempotent; any thread but the
  // loop's own.
  void Stop();

  // Runs `task` on the loop's thread. False, and `task` is dropped, if the loop has stopped or the
  // mailbox is full: the caller must then fail its request instead of waiting.
  [[nodiscard]] bool Post(std::function<void()> task);

  // The same for the end of something that was begun: a computation, a send, a call. It finds room
  // in a full mailbox too, since its caller waits for this end to free what it holds. Their
  // number is bounded by what may be under way at once; what a peer can send at will is for Post.
  // False only if the loop has stopped.
  [[nodiscard]] bool PostCompletion(std::function<void()> task);

  // Runs `done` on the loop now and then until it is true; false if it was not within `limit_ms`.
  // True if the loop has stopped. Any thread but the loop's own.
  bool Await(const std::function<bool()>& done, int64_t limit_ms);

  // True on the loop's own thread; for assertions.
  bool OnLoopThread() const { return std::this_thread::get_id() == thread_id_; }

 private:
  void Run();

  const std::string name_;
  const size_t mailbox_limit_;
  std::function<int64_t(int64_t)> on_wake_;
  Mutex mutex_;
  std::vector<std::function<void()>> mailbox_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
  std::thread::id thread_id_;
};

}  // namespace baton

#endif  // COMMON_BASE_EVENT_LOOP_H_
