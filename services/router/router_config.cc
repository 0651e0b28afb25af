#include "services/router/router_config.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "common/base/random.h"
#include "common/config/mode.h"
#include "common/model/families/family.h"

namespace baton::router {
namespace {

// With one, a large body would hold up every other request.
constexpr int kMinHttpWorkers = 2;
constexpr int kMaxHttpWorkers = 16;

// "/models/tiny/" -> "tiny".
std::string LastPart(const std::string& path) {
  std::filesystem::path cleaned = std::filesystem::path(path).lexically_normal();
  if (!cleaned.has_filename()) cleaned = cleaned.parent_path();
  return cleaned.filename().string();
}

HttpServerOptions MakeHttpOptions(const v1::Options& options) {
  HttpServerOptions http;
  http.host = options.host();
  http.port = static_cast<uint16_t>(options.port());
  http.worker_threads = options.http_worker_threads() > 0
                            ? static_cast<int>(options.http_worker_threads())
                            : std::clamp(static_cast<int>(std::thread::hardware_concurrency()),
                                         kMinHttpWorkers, kMaxHttpWorkers);
  http.max_connections = static_cast<size_t>(options.max_http_connections());
  http.max_connections_per_address =
      static_cast<size_t>(options.max_http_connections_per_address());
  http.max_request_bytes = static_cast<size_t>(options.max_request_bytes());
  http.max_body_bytes_in_flight = static_cast<size_t>(options.max_http_body_bytes_in_flight());
  http.idle_timeout_ms = options.http_idle_timeout_ms();
  return http;
}

}  // namespace

RouterConfig MakeRouterConfig(const v1::Options& options, const ModelConfig& model) {
  RouterConfig config;
  config.instance_id =
      options.instance_id().empty() ? "router-" + RandomHex(4) : options.instance_id();
  config.host = options.host();
  config.grpc_port = static_cast<int>(options.grpc_port());
  config.cluster_host = options.cluster_host().empty() ? options.host() : options.cluster_host();
  config.cluster_port = static_cast<int>(options.cluster_port());
  config.http = MakeHttpOptions(options);
  config.cors_allow_origins = options.cors_allow_origins();
  config.ssl_certfile = options.ssl_certfile();
  config.ssl_keyfile = options.ssl_keyfile();
  config.shown = options;
  config.api_key = options.api_key();
  config.api_key_file = options.api_key_file();
  config.served_model_name = options.served_model_name().empty() ? LastPart(options.model_path())
                                                                 : options.served_model_name();
  const Family* family = FindFamily(model.architecture);
  config.model_type = family == nullptr ? model.architecture : family->model_type;
  config.vocab_size = model.vocab_size;
  config.max_context_tokens = config::ContextTokens(options, model.max_position_embeddings);
  config.eos_token_ids = model.eos_token_ids;
  config.default_max_tokens = static_cast<int>(options.default_max_tokens());
  config.request_timeout_ms = options.request_timeout_ms();
  config.max_request_bytes = options.max_request_bytes();
  config.max_requests = static_cast<int>(options.max_concurrent_streams());
  config.max_waiting = static_cast<int>(options.max_queued_requests());
  config.pairing_timeout_ms = options.pairing_timeout_ms();
  config.max_resumes = static_cast<int>(options.max_resumes());
  config.heartbeat_interval_ms = options.heartbeat_interval_ms();
  config.lease_ms = options.lease_ms();
  config.log_requests = options.log_requests() != "off";
  config.hash_header = options.hash_header();
  config.max_queue_ms = options.max_queue_ms();
  config.tenant_header = options.tenant_header();
  config.rate_limits = {options.tenant_requests_per_minute(), options.tenant_tokens_per_minute()};
  config.policy = ParsePolicy(options.load_balance_policy());
  return config;
}

}  // namespace baton::router
