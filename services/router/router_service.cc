#include "services/router/router_service.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/engine/timed/timed_profile.h"
#include "common/http/http_server.h"
#include "common/model/generation_defaults.h"
#include "common/model/model_config.h"
#include "common/net/host.h"
#include "common/tokenizer/sidecar_files.h"

namespace baton::router {
namespace {

// Clients are far away and many: slower pings than between Baton's own processes.
constexpr int kPingEveryMs = 30'000;
constexpr int kPingTimeoutMs = 10'000;
constexpr int kMinClientPingMs = 10'000;
constexpr int kMaxMetadataBytes = 16 << 10;
constexpr int64_t kDrainProgressMs = 5'000;

// The ids that end a text for a model whose generation_config.json counts for nothing:
// config.json's and the tokenizer's own.
absl::StatusOr<std::vector<int32_t>> EndIdsWithoutGenerationConfig(const std::string& model_path,
                                                                   const std::string& directory,
                                                                   const Tokenizer& tokenizer) {
  BATON_ASSIGN_OR_RETURN(std::vector<int32_t> ids, ConfigEosTokenIds(model_path));
  BATON_ASSIGN_OR_RETURN(const TokenRoles roles, LoadTokenRoles(directory));
  const auto own = roles.eos_token ? tokenizer.TokenId(*roles.eos_token) : std::nullopt;
  if (own.has_value() && std::find(ids.begin(), ids.end(), *own) == ids.end()) ids.push_back(*own);
  return ids;
}

absl::StatusOr<chat::ChatFormat> ChatFormatFor(const v1::Options& options,
                                               const ChatTemplate& chat_template,
                                               const Tokenizer& tokenizer) {
  chat::ChatFormat format;
  BATON_ASSIGN_OR_RETURN(format.tools,
                         chat::ToolFormatFor(options.tool_call_parser(), chat_template.text()));
  BATON_ASSIGN_OR_RETURN(
      format.reasoning, chat::ReasoningFormatFor(options.reasoning_parser(), chat_template.text()));
  format.template_takes_tools = chat_template.takes_tools();
  for (std::string& mark : chat::AllMarks(format.tools, format.reasoning)) {
    const std::optional<int32_t> id = tokenizer.TokenId(mark);
    if (id.has_value() && tokenizer.IsSpecial(*id)) format.special_marks.push_back(std::move(mark));
  }
  LOG(kInfo) << "calls of tools: " << chat::NameOf(format.tools)
             << " (--tool-call-parser), reasoning: " << chat::NameOf(format.reasoning)
             << " (--reasoning-parser)";
  return format;
}

}  // namespace

RouterService::RouterService(RouterConfig config, std::shared_ptr<SecretSet> api_keys,
                             std::unique_ptr<Tokenizer> tokenizer,
                             std::unique_ptr<ChatTemplate> chat_template)
    : api_keys_(std::move(api_keys)),
      shell_(std::move(config), std::move(tokenizer), std::move(chat_template)),
      http_options_(MakeHttpOptions(options())),
      inference_(shell_, api_keys_, http_options_.worker_threads,
                 http_options_.max_body_bytes_in_flight),
      cluster_(shell_),
      handler_(shell_, options(), api_keys_) {}
RouterService::~RouterService() { Stop(0); }

absl::StatusOr<std::unique_ptr<RouterService>> RouterService::FromOptions(
    const v1::Options& options, std::shared_ptr<const rpc::ClusterSecurity> security) {
  BATON_ASSIGN_OR_RETURN(const ModelConfig model,
                         LoadPlayedModelConfig(options.model_path(), options.context_length(),
                                               options.timed_profile()));
  const std::string& directory =
      options.tokenizer_path().empty() ? options.model_path() : options.tokenizer_path();
  BATON_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::Load(directory));
  BATON_ASSIGN_OR_RETURN(auto chat_template, MakeChatTemplate(options.chat_template(), *tokenizer));
  RouterConfig config = MakeRouterConfig(options, model);
  BATON_ASSIGN_OR_RETURN(config.chat_format, ChatFormatFor(options, *chat_template, *tokenizer));
  if (options.generation_config() == "auto") {
    BATON_ASSIGN_OR_RETURN(config.defaults, LoadGenerationDefaults(options.model_path()));
    const std::string defaults = config.defaults.ToString();
    LOG(kInfo) << "sampling defaults: "
               << (defaults.empty() ? "OpenAI's (generation_config.json says nothing)"
                                    : defaults + " (generation_config.json)");
  } else {
    LOG(kInfo) << "sampling defaults: OpenAI's (--generation-config " << options.generation_config()
               << ")";
  }
  if (options.generation_config() == "none") {
    BATON_ASSIGN_OR_RETURN(
        config.end_ids, EndIdsWithoutGenerationConfig(options.model_path(), directory, *tokenizer));
    config.eos_token_ids = config.end_ids;
  }
  if (!options.decision_log().empty()) {
    BATON_ASSIGN_OR_RETURN(
        config.decision_log,
        DecisionLog::Open(options.decision_log(), ParsePolicy(options.load_balance_policy())));
  }
  config.cluster_security = std::move(security);
  return Start(std::move(config), std::move(tokenizer), std::move(chat_template));
}

absl::StatusOr<std::unique_ptr<RouterService>> RouterService::Start(
    RouterConfig config, std::unique_ptr<Tokenizer> tokenizer,
    std::unique_ptr<ChatTemplate> chat_template) {
  auto keys = SecretSet::Load(config.options.api_key(), config.options.api_key_file());
  if (!keys.ok()) return InvalidField("api_key_file", std::string(keys.status().message()));
  std::unique_ptr<RouterService> service(new RouterService(
      std::move(config), *std::move(keys), std::move(tokenizer), std::move(chat_template)));
  BATON_RETURN_IF_ERROR(service->Listen());
  return service;
}

absl::Status RouterService::Listen() {
  BATON_RETURN_IF_ERROR(ListenGrpc());
  BATON_RETURN_IF_ERROR(ListenCluster());
  HttpServerOptions http = http_options_;
  http.observer = shell_.http_observer();
  BATON_ASSIGN_OR_RETURN(http.cors, ParseCorsPolicy(options().cors_allow_origins()));
  if (!options().ssl_certfile().empty()) {
    BATON_ASSIGN_OR_RETURN(http.tls,
                           TlsCertificate::Load(options().ssl_certfile(), options().ssl_keyfile()));
  }
  BATON_ASSIGN_OR_RETURN(http_, handler_.Serve(std::move(http)));
  LOG(kInfo) << (options().ssl_certfile().empty() ? "HTTP" : "HTTPS") << " on "
             << http_options_.host << ":" << http_->port();
  return absl::OkStatus();
}

absl::Status RouterService::ListenGrpc() {
  rpc::ServerOptions server;
  server.host = options().host();
  server.port = static_cast<int>(options().grpc_port());
  server.max_request_bytes = options().max_request_bytes();
  server.max_metadata_bytes = kMaxMetadataBytes;
  server.ping_every_ms = kPingEveryMs;
  server.ping_timeout_ms = kPingTimeoutMs;
  server.min_client_ping_ms = kMinClientPingMs;
  if (!options().ssl_certfile().empty()) {
    server.credentials = rpc::ClientTls(options().ssl_certfile(), options().ssl_keyfile());
  }
  BATON_ASSIGN_OR_RETURN(server_, rpc::StartServer(server, {&inference_}));
  SetServing(false);
  shell_.Start([this](bool ready) { SetServing(ready); });
  LOG(kInfo) << "gRPC on " << net::JoinHostPort(options().host(), grpc_port());
  return absl::OkStatus();
}

absl::Status RouterService::ListenCluster() {
  rpc::ServerOptions server;
  server.host = config().cluster_host;
  server.port = static_cast<int>(options().cluster_port());
  if (config().cluster_security != nullptr) {
    server.credentials = config().cluster_security->ForServer();
  }
  BATON_ASSIGN_OR_RETURN(cluster_server_, rpc::StartServer(server, {&cluster_}));
  cluster_server_.SetServing("baton.v1.Cluster", true);
  LOG(kInfo) << "workers on " << net::JoinHostPort(config().cluster_host, cluster_port());
  return absl::OkStatus();
}

void RouterService::Drain(int64_t settle_ms, int64_t timeout_ms) {
  const int64_t begun_us = NowUs();
  shell_.BeginDrain(settle_ms, timeout_ms);
  if (http_ != nullptr) http_->BeginDrain();
  if (server_.server != nullptr) SetServing(false);
  LOG(kInfo) << "drain begins: " << shell_.load().in_flight << " requests run; new ones are taken "
             << "for " << settle_ms << " ms more (--drain-settle-ms), these have " << timeout_ms
             << " ms then (--drain-timeout-ms)";
  while (!shell_.AwaitDrained(kDrainProgressMs)) {
    LOG(kInfo) << "draining for " << (NowUs() - begun_us) / 1'000'000 << " s, waits for "
               << shell_.load().in_flight << " requests";
  }
  const DrainCounts counts = shell_.load().drain;
  LOG(kInfo) << "drain ends after " << (NowUs() - begun_us) / 1000
             << " ms: refused=" << counts.refused_total << " time_over=" << counts.time_over_total;
}

void RouterService::BeginStop() {
  shell_.BeginStop();
  if (http_ != nullptr) http_->StopListening();
  if (server_.server != nullptr) SetServing(false);
}

void RouterService::Stop(int64_t grace_ms) {
  if (std::exchange(stopped_, true)) return;
  BeginStop();
  shell_.Stop(grace_ms);
  http_.reset();  // Every request has ended; their last bytes leave now.
  for (const rpc::RunningServer* running : {&server_, &cluster_server_}) {
    if (running->server != nullptr) rpc::StopServer(*running->server);
  }
}

}  // namespace baton::router
