// One Decode.Generate call. Reads one message at a time: the next one only after the loop has
// handled the last, so that a fast decode can't fill the loop's mailbox.
#ifndef SERVICES_ROUTER_LEGS_DECODE_STREAM_H_
#define SERVICES_ROUTER_LEGS_DECODE_STREAM_H_

#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/rpc/call_tracker.h"
#include "common/tracing/trace_context.h"
#include "common/types/finish_reason.h"
#include "common/types/sampled_token.h"
#include "services/router/core/router_core.h"
#include "services/router/legs/worker_channels.h"

namespace baton::router {

class DecodeStream : public grpc::ClientReadReactor<v1::DecodeGenerateResponse> {
 public:
  // Called on gRPC's threads, one at a time. After a token the reader must call Continue exactly
  // once; false from `on_token` means that it never will (the loop has stopped).
  struct Callbacks {
    std::function<bool(SampledToken token)> on_token;
    // The stream's end, the last call.
    std::function<void(absl::StatusOr<FinishReason> outcome)> on_end;
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
  std::optional<absl::StatusOr<FinishReason>> finished_;  // What the last message said.
  std::shared_ptr<DecodeStream> self_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_LEGS_DECODE_STREAM_H_
