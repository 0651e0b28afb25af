// One call whose answer is a stream of tokens: Generate, at a decode service or at stage 0 of a
// colocated chain. To workers with a relay (relay.h) they go by that instead.
#ifndef SERVICES_ROUTER_LEGS_LEG_STREAM_H_
#define SERVICES_ROUTER_LEGS_LEG_STREAM_H_

#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/rpc/call_tracker.h"
#include "common/tracing/trace_context.h"
#include "proto/baton/v1/common.pb.h"
#include "proto/baton/v1/decode.pb.h"
#include "proto/baton/v1/prefill.pb.h"
#include "services/router/core/leg_calls.h"
#include "services/router/legs/read_ahead.h"
#include "services/router/legs/worker_channels.h"

namespace baton::router {

// A message, made of gRPC's by the thread that reads: so what that has allocated it frees itself.
struct Heard {
  StreamMessage message;
  std::unique_ptr<v1::StartResponse> prompt;  // Null: it tells of none.
};
Heard HeardOf(v1::DecodeGenerateResponse& message);

class LegStream : public grpc::ClientReadReactor<v1::DecodeGenerateResponse> {
 public:
  // To a decode service, or to a colocated chain.
  using Request = std::variant<v1::DecodeGenerateRequest, v1::StartRequest>;

  // Who hears what comes of it, on the loop.
  struct Listener {
    // Each message in order.
    std::function<void(const StreamMessage& message)> on_message;
    // What a colocated chain tells of the prompt. Null: a stream that does is malformed.
    std::function<void(v1::StartResponse prompt)> on_prompt;
    // The end, once, after all messages.
    std::function<void(const absl::Status& status)> on_end;
  };
  // Runs a task on the loop, in order; false: it has stopped. Called on gRPC's threads.
  using Post = std::function<bool(std::function<void()> task)>;

  // Starts the call; it keeps itself alive until its end.
  static std::shared_ptr<LegStream> Start(std::shared_ptr<WorkerStubs> worker,
                                          rpc::CallTracker& tracker, Request request,
                                          std::chrono::system_clock::time_point deadline,
                                          const tracing::TraceContext& trace, Post post,
                                          Listener listener);
  LegStream(std::shared_ptr<WorkerStubs> worker, rpc::CallTracker& tracker, Request request,
            Post post, Listener listener);

  void Cancel() { context_->TryCancel(); }

 private:
  void HearUnheard();  // On the loop.
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  rpc::TrackedContext context_;
  const std::shared_ptr<WorkerStubs> worker_;
  const Request request_;
  const Post post_;
  const Listener listener_;
  v1::DecodeGenerateResponse message_;  // The reader's.
  ReadAhead<Heard> unheard_;
  std::shared_ptr<LegStream> self_;
  std::vector<Heard> hearing_;  // The loop's: taken from `unheard_`.
};

// Tells of a message; true: it says that the stream's text has finished.
bool Tell(const LegStream::Listener& listener, Heard& heard);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_LEGS_LEG_STREAM_H_
