#include "services/router/router_service.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/model/model_config.h"

namespace baton::router {
namespace {

constexpr char kInference[] = "baton.v1.Inference";
constexpr char kCluster[] = "baton.v1.Cluster";

constexpr int kKeepaliveTimeMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
constexpr int kMinClientPingIntervalMs = 10'000;
constexpr int kMaxMetadataBytes = 16 << 10;
// Calls that have nothing left to wait for get this long to send their last bytes.
constexpr auto kServerShutdown = std::chrono::seconds(2);

void Configure(grpc::ServerBuilder& builder, const RouterConfig& config) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(config.max_request_bytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // A client whose host vanished is noticed by pings: nothing else would end its requests.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinClientPingIntervalMs);
  // A second router on the same port is a mistake, not a way to share it.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

}  // namespace

RouterService::RouterService(RouterConfig config, std::unique_ptr<Tokenizer> tokenizer,
                             std::unique_ptr<ChatTemplate> chat_template)
    : shell_(std::move(config), std::move(tokenizer), std::move(chat_template)),
      inference_(shell_, shell_.config().api_key),
      cluster_(shell_) {}

RouterService::~RouterService() { Stop(0); }

absl::StatusOr<std::unique_ptr<RouterService>> RouterService::FromOptions(
    const v1::Options& options) {
  BATON_ASSIGN_OR_RETURN(const ModelConfig model, LoadModelConfig(options.model_path()));
  const std::string& directory =
      options.tokenizer_path().empty() ? options.model_path() : options.tokenizer_path();
  BATON_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::Load(directory));
  BATON_ASSIGN_OR_RETURN(auto chat_template, MakeChatTemplate(options.chat_template(), *tokenizer));
  return Start(MakeRouterConfig(options, model), std::move(tokenizer), std::move(chat_template));
}

absl::StatusOr<std::unique_ptr<RouterService>> RouterService::Start(
    RouterConfig config, std::unique_ptr<Tokenizer> tokenizer,
    std::unique_ptr<ChatTemplate> chat_template) {
  std::unique_ptr<RouterService> service(
      new RouterService(std::move(config), std::move(tokenizer), std::move(chat_template)));
  BATON_RETURN_IF_ERROR(service->Listen());
  return service;
}

absl::Status RouterService::Listen() {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  Configure(builder, config());
  const std::string address = absl::StrCat(config().host, ":", config().grpc_port);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &grpc_port_);
  builder.RegisterService(&inference_);
  builder.RegisterService(&cluster_);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || grpc_port_ == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, " for gRPC"));
  }
  server_->GetHealthCheckService()->SetServingStatus(kCluster, true);
  SetServing(false);
  shell_.Start([this](bool ready) { SetServing(ready); });
  LOG(kInfo) << "gRPC on " << config().host << ":" << grpc_port_;
  return absl::OkStatus();
}

void RouterService::SetServing(bool ready) {
  server_->GetHealthCheckService()->SetServingStatus(kInference, ready);
}

void RouterService::BeginStop() {
  shell_.BeginStop();
  if (server_ != nullptr) SetServing(false);
}

void RouterService::Stop(int64_t grace_ms) {
  if (std::exchange(stopped_, true)) return;
  BeginStop();
  shell_.Stop(grace_ms);
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + kServerShutdown);
  server_->Wait();
}

}  // namespace baton::router
