#include "services/router/legs/worker_channels.h"

#include <algorithm>

#include "common/rpc/channel.h"

namespace baton::router {
namespace {

// What Prefill.Start and Generate tell of a prompt: a line for every chunk of a million tokens on
// every stage.
constexpr int kMaxReportBytes = 64 << 20;

}  // namespace

WorkerStubs::WorkerStubs(InstanceRef ref, const std::string& worker_address,
                         std::shared_ptr<const rpc::ClusterSecurity> security)
    : instance(std::move(ref)), address(worker_address) {
  const std::shared_ptr<grpc::Channel> channel = rpc::OpenChannel(
      address,
      {.max_receive_bytes = kMaxReportBytes,
       .security = std::move(security),
       .peers = {{rpc::PeerRole::kPrefill, instance.id}, {rpc::PeerRole::kDecode, instance.id}}});
  decode = v1::Decode::NewStub(channel);
  prefill = v1::Prefill::NewStub(channel);
  relays = v1::Relays::NewStub(channel);
}

std::shared_ptr<WorkerStubs> WorkerChannels::Get(const InstanceRef& instance,
                                                 const std::string& address) {
  std::shared_ptr<WorkerStubs>& stubs = stubs_[instance];
  if (stubs == nullptr || stubs->address != address) {
    stubs = std::make_shared<WorkerStubs>(instance, address, security_);
  }
  return stubs;
}

void WorkerChannels::Keep(const std::vector<InstanceRef>& instances) {
  std::erase_if(stubs_, [&instances](const auto& entry) {
    return std::find(instances.begin(), instances.end(), entry.first) == instances.end();
  });
}

}  // namespace baton::router
