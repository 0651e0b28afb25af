// One Decode.Generate call. Reads one message at a time: the next one only after the loop has
// handled the last, so that a fast decode can't fill the loop's mailbox.
#ifndef SERVICES_ROUTER_LEGS_DECODE_STREAM_H_
#define SERVICES_ROUTER_LEGS_DECODE_STREAM_H_

#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "common/rpc/call_tracker.h"
#include "common/tracing/trace_context.h"
#include "services/router/core/leg_calls.h"
#include "services/router/legs/worker_channels.h"

namespace baton::router {

class DecodeStream : public grpc::ClientReadReactor<v1::DecodeGenerateResponse> {
 public:
  // Called on gRPC's threads, one at a time. After a message the reader must call Continue exactly
  // once; false from `on_message` means that it never will (the loop has stopped).
  struct Callbacks {
    std::function<bool(StreamMessage message)> on_message;
    // The call's end, the last callback.
    std::function<void(const absl::Status& status)> on_end;
  };

  // Starts the call; it keeps itself alive until its end.
  static std::shared_ptr<DecodeStream> Start(std::shared_ptr<WorkerStubs> worker,
                                             rpc::CallTracker& tracker,
                                             const v1::DecodeGenerateRequest& request,
                                             std::chrono::system_clock::time_point deadline,
                                             const tracing::TraceContext& trace,
                                             Callbacks callbacks);
  DecodeStream(std::shared_ptr<WorkerStubs> worker, rpc::CallTracker& tracker,
               v1::DecodeGenerateRequest request, Callbacks callbacks);

  void Continue() { StartRead(&message_); }
  void Cancel() { context_->TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  rpc::TrackedContext context_;
  const std::shared_ptr<WorkerStubs> worker_;
  const v1::DecodeGenerateRequest request_;
  Callbacks callbacks_;
  v1::DecodeGenerateResponse message_;
  std::shared_ptr<DecodeStream> self_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_LEGS_DECODE_STREAM_H_
