// A thread that owns a state machine: closures posted from any thread run on it one at a time, in
// order, and timers fire on it; or on a thread that runs one in its place. This is the only way
// that a shell touches its core, so cores need no locks.
#ifndef COMMON_BASE_EVENT_LOOP_H_
#define COMMON_BASE_EVENT_LOOP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
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

  // As Post, for the end of something that was begun: a computation, a send, a call. It finds room
  // in a full mailbox too, since its caller waits for this end to free what it holds. Their
  // number is bounded by what may be under way at once; what a peer can send at will is for Post.
  // False only if the loop has stopped.
  [[nodiscard]] bool PostCompletion(std::function<void()> task);

  // As Post and PostCompletion, but while the loop has nothing to do the caller runs `task` in its
  // place, before this returns: the loop's thread need not be woken for it. The caller holds no
  // lock that a task of the loop takes.
  [[nodiscard]] bool RunOrPost(std::function<void()> task);
  [[nodiscard]] bool RunOrPostCompletion(std::function<void()> task);

  // Runs `done` on the loop now and then until it is true; false if it was not within `limit_ms`.
  // True if the loop has stopped. Any thread but the loop's own.
  bool Await(const std::function<bool()>& done, int64_t limit_ms);

  // True on the loop's own thread; for assertions where nothing is run in its place.
  bool OnLoopThread() const { return std::this_thread::get_id() == thread_id_; }

 private:
  void Run();
  bool Add(std::function<void()> task, size_t limit);
  bool RunOrAdd(std::function<void()> task, size_t limit);
  // Whether the loop's thread has to be woken now, behind the unlocking, to do or to end something.
  bool MustWake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Who has run something is done with it.
  void Done();
  // What the loop's thread is to do next. kRun: what is in `batch`, and then it is Done.
  enum class Next { kRun, kSleep, kEnd };
  struct Sleep {
    uint32_t seen = 0;  // What `wakes_` was.
    int64_t until_us = kNeverUs;
  };
  Next Take(std::vector<std::function<void()>>& batch, Sleep& sleep);

  const std::string name_;
  const size_t mailbox_limit_;
  std::function<int64_t(int64_t)> on_wake_;
  Mutex mutex_;
  std::vector<std::function<void()>> mailbox_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool runs_ ABSL_GUARDED_BY(mutex_) = true;            // Some thread does what there is to do.
  int64_t wake_us_ ABSL_GUARDED_BY(mutex_) = kNeverUs;  // When `on_wake_` is due.
  // Until when the loop's thread sleeps; nullopt: it does not.
  std::optional<int64_t> sleeps_until_us_ ABSL_GUARDED_BY(mutex_);
  // What the loop's thread sleeps on: mutex_ itself would wake it whenever it is unlocked. Changed
  // under mutex_ alone.
  std::atomic<uint32_t> wakes_{0};
  std::thread thread_;
  std::thread::id thread_id_;
};

}  // namespace baton

#endif  // COMMON_BASE_EVENT_LOOP_H_
