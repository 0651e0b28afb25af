// The gRPC service baton.v1.Decode: checks every field on gRPC's threads and passes requests to the
// loop.
#ifndef SERVICES_DECODE_DECODE_RPC_H_
#define SERVICES_DECODE_DECODE_RPC_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/event_loop.h"
#include "common/tracing/tracer.h"
#include "proto/baton/v1/decode.grpc.pb.h"
#include "services/decode/decode_shell.h"
#include "services/prefill/prefill_service.h"
#include "services/worker/token_relay.h"

namespace baton::decode {

class DecodeRpc final : public v1::Decode::CallbackService {
 public:
  // `loop` stops after the gRPC server; `shell` is called on it only.
  DecodeRpc(const prefill::PrefillOptions& options, const prefill::PrefillService::Parts& parts,
            EventLoop* loop, DecodeShell* shell)
      : options_(options),
        parts_(parts),
        model_(parts.executor->config()),
        loop_(loop),
        shell_(shell) {}
  grpc::ServerUnaryReactor* Reserve(grpc::CallbackServerContext* context,
                                    const v1::ReserveRequest* request,
                                    v1::ReserveResponse* response) override;
  grpc::ServerWriteReactor<v1::DecodeGenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::DecodeGenerateRequest* request) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::DecodeAbortRequest* request,
                                  v1::DecodeAbortResponse* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const v1::FlushCacheRequest* request,
                                       v1::FlushCacheResponse* response) override;

  // A Generate that comes by a relay.
  void Begin(const v1::RelayedCall& call, worker::TokenRelay& relay) const;

 private:
  worker::StreamTrace TraceOf(tracing::ActiveSpan span) const;
  void Begin(const v1::DecodeGenerateRequest& request,
             const std::shared_ptr<worker::TokenStream>& stream) const;
  absl::StatusOr<prefill::Start> Check(const v1::ReserveRequest& request) const;
  absl::Status CheckPrompt(const v1::ReserveRequest& request) const;
  absl::Status Own(absl::Status status) const;
  // Runs `task` on the loop, then answers OK or why it could not run.
  grpc::ServerUnaryReactor* PostAndAnswer(grpc::CallbackServerContext* context,
                                          std::function<void()> task) const;

  const prefill::PrefillOptions options_;
  const prefill::PrefillService::Parts parts_;
  const ModelConfig& model_;
  EventLoop* const loop_;
  DecodeShell* const shell_;
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_DECODE_RPC_H_
