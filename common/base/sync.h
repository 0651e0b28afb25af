// Mutex, MutexLock and Notification with Abseil's interface and semantics, on the standard library:
// the one kind of lock in Baton. Debian's Abseil is not built for ThreadSanitizer, which therefore
// sees none of the order that absl::Mutex makes and reports races everywhere; it does see pthread's
// mutex. A bare std::mutex in turn has no annotations for clang's -Wthread-safety, which the lint
// runs. A lambda given to Await says ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) itself: the analysis
// reads it apart from its caller.
#ifndef COMMON_BASE_SYNC_H_
#define COMMON_BASE_SYNC_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace baton {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }

  void Unlock() ABSL_UNLOCK_FUNCTION() {
    if (waiters_ > 0) changed_.notify_all();
    mutex_.unlock();
  }

  // Waits, unlocked, until `condition()` holds; it is evaluated locked, whenever somebody unlocks.
  template <typename Condition>
  void Await(Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    std::unique_lock<std::mutex> lock(mutex_, std::adopt_lock);
    ++waiters_;
    changed_.wait(lock, condition);
    --waiters_;
    lock.release();
  }

  // The same for at most `timeout`; what `condition()` says at the end.
  template <typename Condition>
  bool AwaitFor(std::chrono::microseconds timeout, Condition condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    std::unique_lock<std::mutex> lock(mutex_, std::adopt_lock);
    ++waiters_;
    const bool met = changed_.wait_for(lock, timeout, condition);
    --waiters_;
    lock.release();
    return met;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiters_ = 0;  // Guarded by mutex_.
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
