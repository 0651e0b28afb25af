// Counts RPCs under way, so that their owner can wait for the last callback before it goes.
#ifndef SERVICES_ROUTER_LEGS_CALL_TRACKER_H_
#define SERVICES_ROUTER_LEGS_CALL_TRACKER_H_

#include <grpcpp/client_context.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_set>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"

namespace baton::router {

// Thread-safe.
class CallTracker {
 public:
  void Add(grpc::ClientContext* context) {
    MutexLock lock(&mutex_);
    contexts_.insert(context);
    if (cancelled_) context->TryCancel();
  }
  void Remove(grpc::ClientContext* context) {
    MutexLock lock(&mutex_);
    contexts_.erase(context);
  }

  // Cancels what is under way and all that comes later.
  void CancelAll() {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
  }

  // Waits until nothing is under way; false after `timeout`, if there is one.
  bool WaitIdle(std::chrono::milliseconds timeout) {
    MutexLock lock(&mutex_);
    return mutex_.AwaitFor(
        timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return contexts_.empty(); });
  }
  void WaitIdle() {
    MutexLock lock(&mutex_);
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return contexts_.empty(); });
  }

 private:
  Mutex mutex_;
  std::unordered_set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

// A client context that is tracked for as long as it lives: part of every call object.
class TrackedContext {
 public:
  explicit TrackedContext(CallTracker& tracker) : tracker_(tracker) { tracker_.Add(&context_); }
  ~TrackedContext() { tracker_.Remove(&context_); }
  TrackedContext(const TrackedContext&) = delete;
  TrackedContext& operator=(const TrackedContext&) = delete;

  grpc::ClientContext& operator*() { return context_; }
  grpc::ClientContext* operator->() { return &context_; }

 private:
  CallTracker& tracker_;
  grpc::ClientContext context_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_LEGS_CALL_TRACKER_H_
