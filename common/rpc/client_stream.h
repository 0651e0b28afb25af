// A client's end of a call in which both sides stream.
#ifndef COMMON_RPC_CLIENT_STREAM_H_
#define COMMON_RPC_CLIENT_STREAM_H_

#include <grpcpp/support/client_callback.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/rpc/call_tracker.h"
#include "common/rpc/grpc_status.h"

namespace baton::rpc {

// Keeps itself alive until gRPC is done with it, so its owner may let go at any time.
template <typename Request, typename Response>
class ClientStream final : private grpc::ClientBidiReactor<Request, Response>,
                           public std::enable_shared_from_this<ClientStream<Request, Response>> {
 public:
  using Reactor = grpc::ClientBidiReactor<Request, Response>;
  // Called on gRPC's threads, one at a time; they must not block.
  struct Callbacks {
    // False: it could not be taken. The stream is then cancelled, for what it said is lost.
    std::function<bool(const Response&)> on_response;
    // Last, once; OK means that the server ended it.
    std::function<void(const absl::Status&)> on_done;
  };
  // Names the call to the stub, which it keeps.
  using Start = std::function<void(grpc::ClientContext*, Reactor*)>;

  // More unsent messages than this end the stream: the peer has stopped reading.
  static constexpr size_t kMaxUnsent = 1024;

  // `tracker` outlives the call.
  static std::shared_ptr<ClientStream> Open(Start start, CallTracker& tracker,
                                            Callbacks callbacks) {
    std::shared_ptr<ClientStream> call(
        new ClientStream(std::move(start), tracker, std::move(callbacks)));
    call->self_ = call;
    call->start_(&*call->context_, call.get());
    call->AddHold();
    call->StartRead(&call->response_);
    call->StartCall();
    return call;
  }

  // Any thread. After the end of the stream: nothing.
  void Write(Request request) {
    bool overrun = false;
    {
      MutexLock lock(&mutex_);
      if (closed_) return;
      overrun = unsent_.size() >= kMaxUnsent;
      if (!overrun) {
        unsent_.push_back(std::move(request));
        if (unsent_.size() == 1) this->StartWrite(&unsent_.front());
      }
    }
    if (overrun) Cancel();
  }

  void Cancel() {
    context_->TryCancel();
    Close();
  }

 private:
  ClientStream(Start start, CallTracker& tracker, Callbacks callbacks)
      : context_(tracker), start_(std::move(start)), callbacks_(std::move(callbacks)) {}

  void OnReadDone(bool ok) override {
    if (!ok) {
      Close();
      return;
    }
    if (!callbacks_.on_response(response_)) {
      Cancel();
      return;
    }
    this->StartRead(&response_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Close();
      return;
    }
    MutexLock lock(&mutex_);
    unsent_.pop_front();
    if (!unsent_.empty() && !closed_) this->StartWrite(&unsent_.front());
  }

  void OnDone(const grpc::Status& status) override {
    callbacks_.on_done(FromGrpc(status));
    const std::shared_ptr<ClientStream> last = std::move(self_);
  }

  // No more writes: gives up the hold that lets others than reactions write.
  void Close() {
    {
      MutexLock lock(&mutex_);
      if (std::exchange(closed_, true)) return;
    }
    this->RemoveHold();
  }

  TrackedContext context_;
  const Start start_;
  const Callbacks callbacks_;
  Response response_;
  Mutex mutex_;
  std::deque<Request> unsent_ ABSL_GUARDED_BY(mutex_);  // The front is being written.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<ClientStream> self_;  // Until OnDone.
};

}  // namespace baton::rpc

#endif  // COMMON_RPC_CLIENT_STREAM_H_
