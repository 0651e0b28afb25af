// baton.v1.Inference over the gateway, on gRPC's callback API: no thread per call.
#ifndef SERVICES_ROUTER_GRPC_INFERENCE_SERVICE_H_
#define SERVICES_ROUTER_GRPC_INFERENCE_SERVICE_H_

#include <string>
#include <utility>

#include "proto/baton/v1/inference.grpc.pb.h"
#include "services/router/gateway.h"

namespace baton::router {

class InferenceService : public v1::Inference::CallbackService {
 public:
  // `gateway` outlives this. Every call must present `api_key`, unless it is empty.
  InferenceService(Gateway& gateway, std::string api_key)
      : gateway_(gateway), api_key_(std::move(api_key)) {}

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
  const std::string api_key_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_GRPC_INFERENCE_SERVICE_H_
