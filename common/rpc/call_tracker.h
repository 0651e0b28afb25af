// Counts RPCs under way, so that their owner can wait for the last callback before it goes.
//
// The wait is not only for the owner's sake: gRPC 1.51 ends its callback threads when the last
// channel or server of the process goes, and if that happens on one of them (in OnDone), it joins
// itself and then uses what it has freed. So the maker of asynchronous calls waits for them before
// the last server or channel goes.
#ifndef COMMON_RPC_CALL_TRACKER_H_
#define COMMON_RPC_CALL_TRACKER_H_

#include <grpcpp/client_context.h>

#include <chrono>
#include <optional>
#include <unordered_set>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"

namespace baton::rpc {

// Thread-safe.
class CallTracker {
 public:
  // Cancels what is under way and all that comes later.
  void CancelAll() {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
  }

  // Waits until nothing is under way; false after `timeout`, if there is one.
  bool WaitIdle(std::chrono::milliseconds timeout) {
    MutexLock lock(&mutex_);
    return mutex_.AwaitFor(timeout,
                           [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_ == 0; });
  }
  void WaitIdle() {
    MutexLock lock(&mutex_);
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_ == 0; });
  }

 private:
  friend class TrackedContext;
  void Add(grpc::ClientContext* context) {
    MutexLock lock(&mutex_);
    ++calls_;
    contexts_.insert(context);
    if (cancelled_) context->TryCancel();
  }
  void Remove(grpc::ClientContext* context) {
    MutexLock lock(&mutex_);
    contexts_.erase(context);
  }
  void Gone() {
    MutexLock lock(&mutex_);
    --calls_;
  }

  Mutex mutex_;
  std::unordered_set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mutex_);
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

// A client context that is tracked for as long as it lives. The first member of every call object:
// destroyed last, when the call's stub has let go of its channel.
class TrackedContext {
 public:
  explicit TrackedContext(CallTracker& tracker) : tracker_(tracker) {
    tracker_.Add(&context_.emplace());
  }
  ~TrackedContext() {
    tracker_.Remove(&*context_);
    context_.reset();
    tracker_.Gone();
  }
  TrackedContext(const TrackedContext&) = delete;
  TrackedContext& operator=(const TrackedContext&) = delete;

  grpc::ClientContext& operator*() { return *context_; }
  grpc::ClientContext* operator->() { return &*context_; }

 private:
  CallTracker& tracker_;
  std::optional<grpc::ClientContext> context_;
};

}  // namespace baton::rpc

#endif  // COMMON_RPC_CALL_TRACKER_H_
