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

}  // namespace

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

RouterConfig MakeRouterConfig(const v1::Options& options, const ModelConfig& model) {
  RouterConfig config;
  config.options = options;
  config.instance_id =
      options.instance_id().empty() ? "router-" + RandomHex(4) : options.instance_id();
  config.cluster_host = options.cluster_host().empty() ? options.host() : options.cluster_host();
  config.served_model_name = options.served_model_name().empty() ? LastPart(options.model_path())
                                                                 : options.served_model_name();
  const Family* family = FindFamily(model.architecture);
  config.model_type = family == nullptr ? model.architecture : family->model_type;
  config.vocab_size = model.vocab_size;
  config.max_context_tokens = config::ContextTokens(options, model.max_position_embeddings);
  config.eos_token_ids = model.eos_token_ids;
  return config;
}

}  // namespace baton::router
