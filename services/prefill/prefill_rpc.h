// The gRPC service baton.v1.Prefill: checks every field on gRPC's threads and hands over to the
// loop's.
#ifndef SERVICES_PREFILL_PREFILL_RPC_H_
#define SERVICES_PREFILL_PREFILL_RPC_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "common/base/event_loop.h"
#include "common/tracing/tracer.h"
#include "proto/baton/v1/prefill.grpc.pb.h"
#include "services/prefill/chain/chain_shell.h"
#include "services/prefill/chain/messages.h"
#include "services/prefill/chain/stage_link.h"
#include "services/worker/peers.h"
#include "services/worker/token_relay.h"

namespace baton::prefill {

class PrefillRpc final : public v1::Prefill::CallbackService {
 public:
  struct Options {
    PlanBounds bounds;
    std::string instance_id;
    std::shared_ptr<EventLoop> loop;
    // Called on the loop only; one of them is null. They live until the loop has stopped.
    ChainShell* chain = nullptr;           // On stage 0.
    StageLink* link = nullptr;             // On later stages.
    tracing::Tracer* tracer = nullptr;     // Null: no tracing.
    const worker::Peers* peers = nullptr;  // Hears of each prompt that is taken.
  };
  explicit PrefillRpc(Options options) : options_(std::move(options)) {}

  grpc::ServerUnaryReactor* Start(grpc::CallbackServerContext* context,
                                  const v1::StartRequest* request,
                                  v1::StartResponse* response) override;
  grpc::ServerWriteReactor<v1::DecodeGenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::StartRequest* request) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::PrefillAbortRequest* request,
                                  v1::PrefillAbortResponse* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const v1::FlushCacheRequest* request,
                                       v1::FlushCacheResponse* response) override;
  grpc::ServerBidiReactor<v1::LinkRequest, v1::LinkResponse>* Link(
      grpc::CallbackServerContext* context) override;

  // A Generate that comes by a relay.
  void Begin(const v1::RelayedCall& call, worker::TokenRelay& relay) const;

 private:
  worker::StreamTrace TraceOf(tracing::ActiveSpan span, const v1::StartRequest& request) const;
  void Begin(const v1::StartRequest& request,
             const std::shared_ptr<worker::TokenStream>& stream) const;
  absl::Status NotStage0() const;
  absl::Status Own(absl::Status status) const;
  void NoteTaken(const v1::StartRequest& request) const;

  const Options options_;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_PREFILL_RPC_H_
