// The router as `baton router` runs it: the shell, its two fronts for clients (gRPC with health and
// reflection, OpenAI's API over HTTP), the listener for the cluster's own processes, and their
// orderly end.
//
//   BATON_ASSIGN_OR_RETURN(auto router, RouterService::FromOptions(options));
//   ... wait for SIGTERM ...
//   router->Drain(settle_ms, timeout_ms);
//   router->Stop(0);
#ifndef SERVICES_ROUTER_ROUTER_SERVICE_H_
#define SERVICES_ROUTER_ROUTER_SERVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/http/http_server.h"
#include "common/rpc/cluster_security.h"
#include "common/rpc/server.h"
#include "common/secrets/secret_set.h"
#include "common/tokenizer/chat/chat_template.h"
#include "common/tokenizer/tokenizer.h"
#include "proto/baton/v1/config.pb.h"
#include "services/router/gateway.h"
#include "services/router/grpc/cluster_service.h"
#include "services/router/grpc/inference_service.h"
#include "services/router/http/openai_handler.h"
#include "services/router/router_config.h"
#include "services/router/router_shell.h"

namespace baton::router {

class RouterService {
 public:
  // Reads the model's config.json and tokenizer (no weights) and starts.
  static absl::StatusOr<std::unique_ptr<RouterService>> FromOptions(
      const v1::Options& options, std::shared_ptr<const rpc::ClusterSecurity> security);

  // UNAVAILABLE, naming the address, if it cannot listen.
  static absl::StatusOr<std::unique_ptr<RouterService>> Start(
      RouterConfig config, std::unique_ptr<Tokenizer> tokenizer,
      std::unique_ptr<ChatTemplate> chat_template);

  ~RouterService();  // Stops without grace.
  RouterService(const RouterService&) = delete;
  RouterService& operator=(const RouterService&) = delete;

  Gateway& gateway() { return shell_; }
  int grpc_port() const { return server_.port; }
  int cluster_port() const { return cluster_server_.port; }
  int http_port() const { return http_->port(); }
  uint64_t incarnation() const { return shell_.incarnation(); }
  const RouterConfig& config() const { return shell_.config(); }

  // Not ready from the first moment, so that load balancers look elsewhere. For `settle_ms`
  // requests are taken all the same, since some of these have not looked yet; then they are refused
  // with UNAVAILABLE, a hint when to try again and, over HTTP, the end of the connection. Returns
  // when the last one has ended, which is at most `timeout_ms` after that. Probes, metrics and
  // workers are answered all the time.
  void Drain(int64_t settle_ms, int64_t timeout_ms);
  // Readiness goes, HTTP takes no new connections and new requests are refused with UNAVAILABLE;
  // workers are still heard.
  void BeginStop();
  // Running requests finish within `grace_ms` or end with UNAVAILABLE; then everything stops.
  // Idempotent.
  void Stop(int64_t grace_ms);

 private:
  RouterService(RouterConfig config, std::shared_ptr<SecretSet> api_keys,
                std::unique_ptr<Tokenizer> tokenizer, std::unique_ptr<ChatTemplate> chat_template);
  const v1::Options& options() const { return config().options; }
  absl::Status Listen();
  absl::Status ListenGrpc();
  absl::Status ListenCluster();
  void SetServing(bool ready) { server_.SetServing("baton.v1.Inference", ready); }

  const std::shared_ptr<SecretSet> api_keys_;
  RouterShell shell_;
  const HttpServerOptions http_options_;
  InferenceService inference_;
  ClusterService cluster_;
  rpc::RunningServer server_;
  rpc::RunningServer cluster_server_;
  const OpenAiHandler handler_;
  std::unique_ptr<HttpServer> http_;  // Calls the handler, so it goes first.
  bool stopped_ = false;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_ROUTER_SERVICE_H_
