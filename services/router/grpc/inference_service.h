// baton.v1.Inference over the gateway, on gRPC's callback API: no thread per call.
#ifndef SERVICES_ROUTER_GRPC_INFERENCE_SERVICE_H_
#define SERVICES_ROUTER_GRPC_INFERENCE_SERVICE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <utility>

#include "common/secrets/secret_set.h"
#include "proto/baton/v1/inference.grpc.pb.h"
#include "services/router/gateway.h"

namespace baton::router {

class InferenceService : public v1::Inference::CallbackService {
 public:
  // `gateway` outlives this. Every call must present one of `api_keys`, if there are any.
  InferenceService(Gateway& gateway, std::shared_ptr<SecretSet> api_keys)
      : gateway_(gateway), api_keys_(std::move(api_keys)) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* GenerateOnce(grpc::CallbackServerContext* context,
                                         const v1::GenerateRequest* request,
                                         v1::WholeAnswer* response) override;
  grpc::ServerWriteReactor<v1::GenerateResponse>* Chat(grpc::CallbackServerContext* context,
                                                       const v1::ChatRequest* request) override;
  grpc::ServerUnaryReactor* ChatOnce(grpc::CallbackServerContext* context,
                                     const v1::ChatRequest* request,
                                     v1::WholeAnswer* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::GetModelInfoRequest* request,
                                         v1::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;

 private:
  Gateway& gateway_;
  const std::shared_ptr<SecretSet> api_keys_;
};

// Whether a call may be served: one of the API keys, presented as the metadata
// "authorization: Bearer KEY".

// UNAUTHENTICATED unless the call presents one of `api_keys`, or these ask for nothing.
grpc::Status CheckAuthorization(const grpc::CallbackServerContext& context, SecretSet& api_keys);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_GRPC_INFERENCE_SERVICE_H_
