// One call whose answer is a stream of tokens: Generate, at a decode service or at stage 0 of a
// colocated chain.
#ifndef SERVICES_ROUTER_LEGS_LEG_STREAM_H_
#define SERVICES_ROUTER_LEGS_LEG_STREAM_H_

#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/rpc/call_tracker.h"
#include "common/tracing/trace_context.h"
#include "proto/baton/v1/common.pb.h"
#include "proto/baton/v1/decode.pb.h"
#include "proto/baton/v1/prefill.pb.h"
#include "services/router/core/leg_calls.h"
#include "services/router/legs/worker_channels.h"

namespace baton::router {

// Reads ahead of the loop by kReadAhead messages at most, so that neither thread has to wake the
// other for each token (rejected: the next read only after the loop has handled the last message).
// At most one task of a stream waits in the loop's mailbox: a fast worker can't fill it.
class LegStream : public grpc::ClientReadReactor<v1::DecodeGenerateResponse> {
 public:
  // To a decode service, or to a colocated chain.
  using Request = std::variant<v1::DecodeGenerateRequest, v1::StartRequest>;

  struct Callbacks {
    // Runs a task on the loop, in order; false: it has stopped. Called on gRPC's threads.
    std::function<bool(std::function<void()> task)> post;
    // On the loop, each message in order.
    std::function<void(const StreamMessage& message)> on_message;
    // On the loop: what a colocated chain tells of the prompt. Null: a stream that does is
    // malformed.
    std::function<void(v1::StartResponse prompt)> on_prompt;
    // The call's end, on one of gRPC's threads. All messages have been posted by then.
    std::function<void(const absl::Status& status)> on_end;
  };

  // Starts the call; it keeps itself alive until its end.
  static std::shared_ptr<LegStream> Start(std::shared_ptr<WorkerStubs> worker,
                                          rpc::CallTracker& tracker, Request request,
                                          std::chrono::system_clock::time_point deadline,
                                          const tracing::TraceContext& trace, Callbacks callbacks);
  LegStream(std::shared_ptr<WorkerStubs> worker, rpc::CallTracker& tracker, Request request,
            Callbacks callbacks);

  void Cancel() { context_->TryCancel(); }

 private:
  static constexpr size_t kReadAhead = 16;

  // A message, made of gRPC's by the thread that reads: so what that has allocated it frees itself.
  struct Heard {
    StreamMessage message;
    std::unique_ptr<v1::StartResponse> prompt;  // Null: it tells of none.
  };
  static Heard HeardOf(v1::DecodeGenerateResponse& message);

  void TellUnheard();  // On the loop.
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  rpc::TrackedContext context_;
  const std::shared_ptr<WorkerStubs> worker_;
  const Request request_;
  Callbacks callbacks_;
  v1::DecodeGenerateResponse message_;  // The reader's.
  std::shared_ptr<LegStream> self_;
  Mutex mutex_;
  std::vector<Heard> unheard_ ABSL_GUARDED_BY(mutex_);
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;  // The next read is the loop's to start.
  std::vector<Heard> hearing_;                   // The loop's, taken from `unheard_`.
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_LEGS_LEG_STREAM_H_
