#include "common/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <climits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/net/host.h"
#include "proto/grpc/health/v1/health.pb.h"

namespace baton::rpc {
namespace {

constexpr int64_t kFirstWindowBytes = 4 << 20;

}  // namespace

absl::StatusOr<RunningServer> StartServer(const ServerOptions& options,
                                          const std::vector<grpc::Service*>& services) {
  grpc::EnableDefaultHealthCheckService(true);
  // Reflection shows what this process has a description of; to name it is to link it.
  grpc::health::v1::HealthCheckRequest::descriptor();
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(std::min<int64_t>(options.max_request_bytes, INT_MAX)));
  // With HTTP/2's initial window of 64 KiB, a prompt of 128K tokens would take several round trips.
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES,
      static_cast<int>(std::min<int64_t>(options.max_request_bytes, kFirstWindowBytes)));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, options.max_metadata_bytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, options.ping_every_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options.ping_timeout_ms);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             options.min_client_ping_ms);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  const std::string address = net::JoinHostPort(options.host, options.port);
  RunningServer running;
  if (options.port != 0) {
    // gRPC says why in its own log alone.
    const absl::Status status = net::CheckListen(options.host, options.port);
    if (!status.ok()) return absl::UnavailableError(absl::StrCat(status.message(), " (gRPC)"));
  }
  builder.AddListeningPort(
      address,
      options.credentials == nullptr ? grpc::InsecureServerCredentials() : options.credentials,
      &running.port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  running.server = builder.BuildAndStart();
  if (running.server == nullptr || running.port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, " for gRPC"));
  }
  return running;
}

void RunningServer::SetServing(const std::string& service, bool ready) const {
  server->GetHealthCheckService()->SetServingStatus(service, ready);
}

void StopServer(grpc::Server& server) {
  server.Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
  server.Wait();
}

int64_t PromptMessageBytes(int max_context_tokens) {
  constexpr int64_t kLongestVarintBytes = 5;  // One id, a 32-bit number.
  constexpr int64_t kEverythingElseBytes = 1 << 20;
  return int64_t{max_context_tokens} * kLongestVarintBytes + kEverythingElseBytes;
}

}  // namespace baton::rpc
