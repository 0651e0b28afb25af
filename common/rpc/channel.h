// Client channels between Baton's own processes: the one place that says how they connect.
#ifndef COMMON_RPC_CHANNEL_H_
#define COMMON_RPC_CHANNEL_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "common/rpc/cluster_security.h"
#include "common/rpc/peer_identity.h"

namespace baton::rpc {

struct ChannelOptions {
  int max_reconnect_ms = 1000;      // The longest pause between two attempts to connect.
  int max_receive_bytes = 4 << 20;  // For one message; -1: no limit.
  // Null: neither encrypted nor authenticated. Otherwise the other end must be one of `peers`.
  std::shared_ptr<const ClusterSecurity> security = nullptr;
  std::vector<PeerIdentity> peers = {};
};

// A channel to `address` ("host:port") that connects at its first call. It shares neither
// connections nor backoff with other channels, and gRPC retries no call: its caller decides.
// Any thread.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address,
                                           const ChannelOptions& options = {});

}  // namespace baton::rpc

#endif  // COMMON_RPC_CHANNEL_H_
