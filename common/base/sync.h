// Mutex, MutexLock and Notification with Abseil's interface and semantics, on the standard library:
// the one kind of lock in Baton. Debian's Abseil is not built for ThreadSanitizer, which therefore
// sees none of the order that absl::Mutex makes and reports races everywhere; it does see pthread's
// mutex. A bare std::mutex in turn has no annotations for clang's -Wthread-safety, which the lint
// runs. A lambda given to Await says ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) itself: the analysis
// reads it apart from its caller.
//
// Who waits is woken when the mutex is free, and not while it is held: a thread that is woken onto
// its waker's core runs at once, and finding the mutex taken it would have to be woken again.
// Rejected: std::condition_variable, which can't be notified behind the unlocking where the waiter
// destroys it as soon as what it has waited for is true.
#ifndef COMMON_BASE_SYNC_H_
#define COMMON_BASE_SYNC_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace baton {
namespace internal {

// Wakes all that sleep on `word`, which need not exist any more.
void WakeSleepers(std::atomic<uint32_t>* word);
// Sleeps unless `word` is another than `seen`, until it is woken or `limit` is over; perhaps less.
void SleepWhile(std::atomic<uint32_t>* word, uint32_t seen, std::chrono::microseconds limit);

}  // namespace internal

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }

  void Unlock() ABSL_UNLOCK_FUNCTION() {
    const bool wakes = has_sleepers_;
    if (wakes) {
      has_sleepers_ = false;
      changes_.fetch_add(1, std::memory_order_relaxed);
    }
    mutex_.unlock();
    // By now a waiter may have destroyed this: what follows uses the address alone.
    if (wakes) internal::WakeSleepers(&changes_);
  }

  // Waits, unlocked, until `condition()` holds; it is evaluated locked, at each unlock.
  template <typename Condition>
  void Await(Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    while (!Holds(condition)) Sleep(std::chrono::microseconds::max());
  }

  // The same for at most `timeout`; what `condition()` says at the end.
  template <typename Condition>
  bool AwaitFor(std::chrono::microseconds timeout, Condition condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    const auto begun = std::chrono::steady_clock::now();
    while (!Holds(condition)) {
      const auto waited =
          std::chrono::floor<std::chrono::microseconds>(std::chrono::steady_clock::now() - begun);
      if (waited >= timeout) return false;
      Sleep(timeout - waited);
    }
    return true;
  }

 private:
  // A condition requires the mutex by the name that its caller has for it, and not by `this`.
  template <typename Condition>
  static bool Holds(Condition& condition) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return condition();
  }

  // Waits for an unlock or the timeout; may also wake spuriously.
  void Sleep(std::chrono::microseconds limit) {
    has_sleepers_ = true;
    const uint32_t seen = changes_.load(std::memory_order_relaxed);
    mutex_.unlock();
    internal::SleepWhile(&changes_, seen, limit);
    mutex_.lock();
  }

  std::mutex mutex_;
  bool has_sleepers_ = false;         // Guarded by mutex_.
  std::atomic<uint32_t> changes_{0};  // What they sleep on; changed under mutex_ alone.
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Something that happens once. The waiter may destroy it as soon as it has been notified.
class Notification {
 public:
  void Notify() {
    MutexLock lock(&mutex_);
    notified_ = true;
  }
  void WaitForNotification() {
    MutexLock lock(&mutex_);
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return notified_; });
  }
  bool HasBeenNotified() {
    MutexLock lock(&mutex_);
    return notified_;
  }

 private:
  Mutex mutex_;
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton

#endif  // COMMON_BASE_SYNC_H_
