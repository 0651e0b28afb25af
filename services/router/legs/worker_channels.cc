#include "services/router/legs/worker_channels.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <utility>

namespace baton::router {
namespace {

constexpr int kMinReconnectMs = 50;
constexpr int kMaxReconnectMs = 1000;

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kMinReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kMinReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  // Without it channels to one address share their connections and their backoff.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // A request is retried by the core alone.
  // No HTTP/2 keepalive: a worker that is dead or stopped is found by its membership lease, sooner
  // than pings would find it, and a server that doesn't expect pings on a quiet stream (a long
  // prefill) answers with GOAWAY, which ends every stream of the connection.
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

WorkerStubs::WorkerStubs(InstanceRef ref, const std::string& worker_address)
    : instance(std::move(ref)), address(worker_address) {
  const std::shared_ptr<grpc::Channel> channel = OpenChannel(address);
  decode = v1::Decode::NewStub(channel);
  prefill = v1::Prefill::NewStub(channel);
}

std::shared_ptr<WorkerStubs> WorkerChannels::Get(const InstanceRef& instance,
                                                 const std::string& address) {
  std::shared_ptr<WorkerStubs>& stubs = stubs_[instance];
  if (stubs == nullptr || stubs->address != address) {
    stubs = std::make_shared<WorkerStubs>(instance, address);
  }
  return stubs;
}

void WorkerChannels::Keep(const std::vector<InstanceRef>& instances) {
  std::erase_if(stubs_, [&instances](const auto& entry) {
    return std::find(instances.begin(), instances.end(), entry.first) == instances.end();
  });
}

}  // namespace baton::router
