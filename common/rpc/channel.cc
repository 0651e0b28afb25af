#include "common/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

namespace baton::rpc {
namespace {

constexpr int kFirstReconnectMs = 50;
// How long an attempt to connect may take, in spite of gRPC's name for it (the pause after a failed
// attempt is the backoff alone). A busy peer needs more than a moment to shake hands: with 50 ms
// here a thousand requests at once failed because their very load delayed the connection.
constexpr int kConnectTimeoutMs = 5000;

}  // namespace

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address,
                                           const ChannelOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, options.max_reconnect_ms);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(options.max_receive_bytes);
  // No HTTP/2 keepalive: a peer that is dead or stopped is found by its lease, sooner than pings
  // would find it, and a server that doesn't expect pings on a quiet stream (a long prefill)
  // answers with GOAWAY, which ends every stream of the connection.
  if (options.security == nullptr) {
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      address, options.security->ForChannel(options.peers), arguments,
      options.security->Interceptors());
}

std::shared_ptr<grpc::Channel> ChannelKeeper::Open(const std::string& address,
                                                   const ChannelOptions& options) {
  channels_.push_back(OpenChannel(address, options));
  return channels_.back();
}

void ChannelKeeper::Sweep() {
  std::erase_if(channels_, [](const std::shared_ptr<grpc::Channel>& channel) {
    // The holder of the last reference is safe: no other copy can be made.
    return channel.use_count() == 1 && channel->GetState(false) != GRPC_CHANNEL_CONNECTING;
  });
}

}  // namespace baton::rpc
