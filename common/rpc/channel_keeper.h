// Opens channels for calls that may end at any time, and keeps each one until it may go: gRPC 1.51
// loses a connection, and leaves it open for ever, whose channel goes while it is being made, as
// happens where a call is cancelled at once.
#ifndef COMMON_RPC_CHANNEL_KEEPER_H_
#define COMMON_RPC_CHANNEL_KEEPER_H_

#include <memory>
#include <string>
#include <vector>

#include "common/rpc/channel.h"

namespace baton::rpc {

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

#endif  // COMMON_RPC_CHANNEL_KEEPER_H_
