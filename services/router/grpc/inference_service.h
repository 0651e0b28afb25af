// baton.v1.Inference over the gateway, on gRPC's callback API: no thread per call. gRPC's threads
// are few, and carry the workers' tokens, too. So they read no request: what parses, renders,
// tokenizes and compiles runs on threads of the service's own.
#ifndef SERVICES_ROUTER_GRPC_INFERENCE_SERVICE_H_
#define SERVICES_ROUTER_GRPC_INFERENCE_SERVICE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/http/worker_pool.h"
#include "common/secrets/secret_set.h"
#include "proto/baton/v1/inference.grpc.pb.h"
#include "services/router/gateway.h"

namespace baton::router {

class InferenceService : public v1::Inference::CallbackService {
 public:
  // `gateway` outlives this. Every call must present one of `api_keys`, if there are any.
  // `max_waiting_bytes`: of requests that wait for one of the `threads`.
  InferenceService(Gateway& gateway, std::shared_ptr<SecretSet> api_keys, int threads,
                   size_t max_waiting_bytes)
      : gateway_(gateway),
        api_keys_(std::move(api_keys)),
        max_waiting_bytes_(max_waiting_bytes),
        pool_("grpc-worker", threads) {}

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
  // Runs `read` on a thread of the pool. RESOURCE_EXHAUSTED, and `read` is dropped, while too much
  // waits. `slow`: it may compile a grammar.
  absl::Status Read(size_t bytes, bool slow, std::function<void()> read);
  // The answers of Generate and Chat, as they come and whole.
  template <typename Request>
  grpc::ServerWriteReactor<v1::GenerateResponse>* Stream(grpc::CallbackServerContext* context,
                                                         const Request* request);
  template <typename Request>
  grpc::ServerUnaryReactor* Whole(grpc::CallbackServerContext* context, const Request* request,
                                  v1::WholeAnswer* response);
  template <typename Call, typename Request>
  void Begin(const std::shared_ptr<Call>& call, grpc::CallbackServerContext* context,
             const Request* request);

  Gateway& gateway_;
  const std::shared_ptr<SecretSet> api_keys_;
  const size_t max_waiting_bytes_;
  std::atomic<size_t> waiting_bytes_{0};
  WorkerPool pool_;  // Last: its threads use the rest.
};

// Whether a call may be served: one of the API keys, presented as the metadata
// "authorization: Bearer KEY".
// UNAUTHENTICATED unless the call presents one of `api_keys`, or these ask for nothing.
grpc::Status CheckAuthorization(const grpc::CallbackServerContext& context, SecretSet& api_keys);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_GRPC_INFERENCE_SERVICE_H_
