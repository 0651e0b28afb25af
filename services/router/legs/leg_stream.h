// One call whose answer is a stream of tokens: Generate, at a decode service or at stage 0 of a
// colocated chain.
#ifndef SERVICES_ROUTER_LEGS_LEG_STREAM_H_
#define SERVICES_ROUTER_LEGS_LEG_STREAM_H_

#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <functional>
#include <memory>
#include <variant>

#include "absl/status/status.h"
#include "common/rpc/call_tracker.h"
#include "common/tracing/trace_context.h"
#include "proto/baton/v1/common.pb.h"
#include "proto/baton/v1/decode.pb.h"
#include "proto/baton/v1/prefill.pb.h"
#include "services/router/core/leg_calls.h"
#include "services/router/legs/worker_channels.h"

namespace baton::router {

// Reads one message at a time: the next one only after the loop has handled the last, so that a
// fast worker can't fill the loop's mailbox.
class LegStream : public grpc::ClientReadReactor<v1::DecodeGenerateResponse> {
 public:
  // To a decode service, or to a colocated chain.
  using Request = std::variant<v1::DecodeGenerateRequest, v1::StartRequest>;

  // Called on gRPC's threads, one at a time. After a message the reader must call Continue exactly
  // once; false from one of the first two means that it never will (the loop has stopped).
  struct Callbacks {
    std::function<bool(StreamMessage message)> on_message;
    // What a colocated chain tells of the prompt. Null: a stream that does is malformed.
    std::function<bool(v1::StartResponse prompt)> on_prompt;
    // The call's end, the last callback.
    std::function<void(const absl::Status& status)> on_end;
  };

  // Starts the call; it keeps itself alive until its end.
  static std::shared_ptr<LegStream> Start(std::shared_ptr<WorkerStubs> worker,
                                          rpc::CallTracker& tracker, Request request,
                                          std::chrono::system_clock::time_point deadline,
                                          const tracing::TraceContext& trace, Callbacks callbacks);
  LegStream(std::shared_ptr<WorkerStubs> worker, rpc::CallTracker& tracker, Request request,
            Callbacks callbacks);

  void Continue() { StartRead(&message_); }
  void Cancel() { context_->TryCancel(); }

 private:
  bool TellMessage();
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  rpc::TrackedContext context_;
  const std::shared_ptr<WorkerStubs> worker_;
  const Request request_;
  Callbacks callbacks_;
  v1::DecodeGenerateResponse message_;
  std::shared_ptr<LegStream> self_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_LEGS_LEG_STREAM_H_
