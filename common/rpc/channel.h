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

// Opens channels for calls that may end at any time, and keeps each one until it may go: gRPC 1.51
// loses a connection, and leaves it open for ever, whose channel goes while it is being made, as
// happens where a call is cancelled at once.

// One thread; a holder of a channel may release it on any thread.
class ChannelKeeper {
 public:
  std::shared_ptr<grpc::Channel> Open(const std::string& address,
                                      const ChannelOptions& options = {});

  // Releases channels that have no other holder and are not connecting. Called now and then.
  void Sweep();

 private:
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
};

}  // namespace baton::rpc

#endif  // COMMON_RPC_CHANNEL_H_
