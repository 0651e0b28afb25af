// gRPC servers of Baton's processes: the one place that says how they listen.
#ifndef COMMON_RPC_SERVER_H_
#define COMMON_RPC_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::rpc {

struct ServerOptions {
  std::string host;
  int port = 0;  // 0: any free one.
  int64_t max_request_bytes = 4 << 20;
  int max_metadata_bytes = 8 << 10;
  // A client that has vanished or stopped without a word is found by pings after both times; its
  // calls are cancelled.
  int ping_every_ms = 5'000;
  int ping_timeout_ms = 5'000;
  std::shared_ptr<grpc::ServerCredentials> credentials = nullptr;  // Null: plain text for all.
  int min_client_ping_ms =
      300'000;  // Clients that ping an idle connection more often are sent away.
};

struct RunningServer {
  std::unique_ptr<grpc::Server> server;
  int port = 0;

  // What its health service says of one of its services.
  void SetServing(const std::string& service, bool ready) const;
};

// Serves `services` (not owned; they outlive the server), health and reflection. UNAVAILABLE if it
// cannot listen: a second server on a port is a mistake, never a way to share it.
absl::StatusOr<RunningServer> StartServer(const ServerOptions& options,
                                          const std::vector<grpc::Service*>& services);

// Ends calls that are still there after two seconds, then the server.
void StopServer(grpc::Server& server);

// The most that a message with the ids of one prompt takes.
int64_t PromptMessageBytes(int max_context_tokens);

}  // namespace baton::rpc

#endif  // COMMON_RPC_SERVER_H_
