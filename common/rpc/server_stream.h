// A server's end of a call in which both sides stream.
#ifndef COMMON_RPC_SERVER_STREAM_H_
#define COMMON_RPC_SERVER_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/rpc/grpc_status.h"

namespace baton::rpc {

// Keeps itself alive until gRPC is done with it, so its user may let go at any time.
template <typename Request, typename Response>
class ServerStream final : public grpc::ServerBidiReactor<Request, Response>,
                           public std::enable_shared_from_this<ServerStream<Request, Response>> {
 public:
  // Called on gRPC's threads; they must not block. The stream is ended with RESOURCE_EXHAUSTED when
  // on_request returns false: its taker's mailbox is full, or it stops.
  struct Callbacks {
    std::function<bool(std::shared_ptr<ServerStream>, Request)> on_request;
    // Nothing more comes; Finish it. May be called twice.
    std::function<void(const std::shared_ptr<ServerStream>&)> on_end;
  };

  // More unsent messages than this end the stream: its caller has stopped reading.
  static constexpr size_t kMaxUnsent = 4096;

  // Starts reading. The raw pointer is for gRPC, which ends the object through OnDone.
  static ServerStream* Open(Callbacks callbacks) {
    std::shared_ptr<ServerStream> stream(new ServerStream(std::move(callbacks)));
    stream->self_ = stream;
    stream->StartRead(&stream->request_);
    return stream.get();
  }

  // Any thread. Finish ends the stream once; what is not being written by then is not sent.
  void Write(Response response) {
    bool overrun = false;
    {
      MutexLock lock(&mutex_);
      if (finished_) return;
      overrun = unsent_.size() >= kMaxUnsent;
      if (!overrun) {
        unsent_.push_back(std::move(response));
        if (unsent_.size() == 1) this->StartWrite(&unsent_.front());
      }
    }
    if (overrun) Finish(absl::ResourceExhaustedError("its caller does not read the stream"));
  }

  // gRPC takes no Finish while a write is under way.
  void Finish(const absl::Status& status) {
    grpc::Status converted = ToGrpc(status);
    {
      MutexLock lock(&mutex_);
      if (std::exchange(finished_, true)) return;
      if (!unsent_.empty()) {
        finish_ = std::move(converted);
        return;
      }
    }
    Reactor::Finish(std::move(converted));
  }

 private:
  using Reactor = grpc::ServerBidiReactor<Request, Response>;

  explicit ServerStream(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}

  void OnReadDone(bool ok) override {
    if (!ok) {
      callbacks_.on_end(this->shared_from_this());
      return;
    }
    if (!callbacks_.on_request(this->shared_from_this(), std::move(request_))) {
      Finish(absl::ResourceExhaustedError("no more messages are taken"));
      return;
    }
    request_.Clear();
    this->StartRead(&request_);
  }

  void OnWriteDone(bool ok) override {
    std::optional<grpc::Status> finish;
    {
      MutexLock lock(&mutex_);
      unsent_.pop_front();
      if (!ok) unsent_.clear();
      if (finish_.has_value()) {
        finish.swap(finish_);
        unsent_.clear();
      } else if (!unsent_.empty()) {
        this->StartWrite(&unsent_.front());
      }
    }
    if (finish.has_value()) Reactor::Finish(*std::move(finish));
  }

  void OnCancel() override { callbacks_.on_end(this->shared_from_this()); }

  void OnDone() override { const std::shared_ptr<ServerStream> last = std::move(self_); }

  const Callbacks callbacks_;
  Request request_;
  Mutex mutex_;
  std::deque<Response> unsent_ ABSL_GUARDED_BY(mutex_);         // The front is being written.
  std::optional<grpc::Status> finish_ ABSL_GUARDED_BY(mutex_);  // Waits for the write under way.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<ServerStream> self_;  // Until OnDone.
};

}  // namespace baton::rpc

#endif  // COMMON_RPC_SERVER_STREAM_H_
