// What a router is made with: the options and the model's facts that it needs, as plain values.
#ifndef SERVICES_ROUTER_ROUTER_CONFIG_H_
#define SERVICES_ROUTER_ROUTER_CONFIG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/http/http_server.h"
#include "common/model/generation_defaults.h"
#include "common/model/model_config.h"
#include "common/rpc/cluster_security.h"
#include "common/tokenizer/chat/output/output_format.h"
#include "proto/baton/v1/config.pb.h"
#include "services/router/core/rate_limits.h"
#include "services/router/core/router_core.h"
#include "services/router/decision_log.h"

namespace baton::router {

struct RouterConfig {
  std::string instance_id = "router";
  std::string host = "127.0.0.1";
  int grpc_port = 0;                       // For clients. 0: any free port.
  std::string cluster_host = "127.0.0.1";  // Where workers register and drains are asked for.
  int cluster_port = 0;
  // Null: workers are not asked who they are, nor is the router.
  std::shared_ptr<const rpc::ClusterSecurity> cluster_security;

  HttpServerOptions http;          // Without paths, errors and origins: those are the front's.
  std::string cors_allow_origins;  // As in the option.
  std::string ssl_certfile;        // Empty: no TLS.
  std::string ssl_keyfile;
  v1::Options shown;  // What the HTTP front reads and shows, but for the API key.

  std::string api_key;       // What clients must present,
  std::string api_key_file;  // or a line of this file; both empty: nothing.

  std::string served_model_name;
  std::string model_type;  // Hugging Face's.
  int vocab_size = 0;
  int max_context_tokens = 0;
  std::vector<int32_t> eos_token_ids;
  chat::ChatFormat chat_format;  // The format of what chats generate.

  int default_max_tokens = 0;    // 0: generation_config.json's, or up to the end of the context.
  GenerationDefaults defaults;   // What a request leaves out.
  std::vector<int32_t> end_ids;  // As in RequestLimits.
  int64_t request_timeout_ms = 600'000;
  int64_t max_request_bytes = 16 << 20;
  int max_requests = 4096;
  int max_waiting = 4096;    // Requests in flight that wait for a pair.
  int64_t max_queue_ms = 0;  // How long requests may wait for room; 0: until their deadline.
  int64_t pairing_timeout_ms = 10'000;
  int max_resumes = 2;
  int64_t heartbeat_interval_ms = 500;
  int64_t lease_ms = 2000;
  bool log_requests = true;
  Policy policy = Policy::kCost;
  std::shared_ptr<DecisionLog> decision_log;  // Null: none.
  std::string hash_header;                    // Has requests' routing keys; empty: none.
  std::string tenant_header;                  // Names requests' tenants; empty: none.
  RateLimitOptions rate_limits;               // Each tenant's.
};

// From the process's options and its model's config.json.
RouterConfig MakeRouterConfig(const v1::Options& options, const ModelConfig& model);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_ROUTER_CONFIG_H_
