#include "common/rpc/channel_keeper.h"

namespace baton::rpc {

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
