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
#include "services/router/decision_log.h"

namespace baton::router {

struct RouterConfig {
  v1::Options options;  // The process's; the HTTP front shows them, but for the API key.

  // What follows from them, and from the model.
  std::string instance_id = "router";
  std::string cluster_host = "127.0.0.1";  // Where workers register and drains are asked for.
  // Null: workers are not asked who they are, nor is the router.
  std::shared_ptr<const rpc::ClusterSecurity> cluster_security;
  std::string served_model_name;
  std::string model_type;  // Hugging Face's.
  int vocab_size = 0;
  int max_context_tokens = 0;
  std::vector<int32_t> eos_token_ids;
  chat::ChatFormat chat_format;               // The format of what chats generate.
  GenerationDefaults defaults;                // What a request leaves out.
  std::vector<int32_t> end_ids;               // As in RequestLimits.
  std::shared_ptr<DecisionLog> decision_log;  // Null: none.
};

// Without paths, errors and origins: those are the front's.
HttpServerOptions MakeHttpOptions(const v1::Options& options);

// From the process's options and its model's config.json.
RouterConfig MakeRouterConfig(const v1::Options& options, const ModelConfig& model);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_ROUTER_CONFIG_H_
