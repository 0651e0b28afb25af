#include "common/engine/connect_ranks.h"

#include <utility>

#include "common/base/status.h"
#include "common/collective/gloo/gloo_transport.h"
#include "common/collective/threaded_communicator.h"
#include "common/engine/torch/torch_backend.h"

namespace baton {
namespace {

// Less than a chain's wiring waits for its stages, so that this more precise status is reported.
constexpr int64_t kConnectMs = 8000;

using Connected = absl::StatusOr<std::shared_ptr<Communicator>>;

Connected ConnectOverGloo(const std::string& host, const GroupDescription& group,
                          const std::shared_ptr<BootstrapStore>& store) {
  const GlooOptions gloo = {
      .rank = group.rank, .size = group.size(), .host = host, .connect_timeout_ms = kConnectMs};
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<MessageTransport> transport, ConnectGloo(gloo, store));
  BATON_ASSIGN_OR_RETURN(
      std::unique_ptr<Communicator> communicator,
      ThreadedCommunicator::Create(group, {}, std::move(transport), kConnectMs, store.get()));
  return std::shared_ptr<Communicator>(std::move(communicator));
}

Connected ConnectOverNccl(const TorchPlugin& plugin, const std::string& device,
                          const GroupDescription& group, std::shared_ptr<BootstrapStore> store) {
  const NcclOptions nccl = {.device = device, .connect_timeout_ms = kConnectMs, .communicator = {}};
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                         plugin.connect_nccl(group, nccl, std::move(store)));
  return std::shared_ptr<Communicator>(std::move(communicator));
}

}  // namespace

absl::StatusOr<ConnectGroup> ConnectRanks(std::string device, std::string host) {
  if (device == "cpu") {
    return ConnectGroup([host = std::move(host)](const GroupDescription& group,
                                                 const std::shared_ptr<BootstrapStore>& store) {
      return ConnectOverGloo(host, group, store);
    });
  }
  BATON_ASSIGN_OR_RETURN(const TorchPlugin* plugin, LoadTorchPlugin());
  return ConnectGroup([plugin, device = std::move(device)](const GroupDescription& group,
                                                           std::shared_ptr<BootstrapStore> store) {
    return ConnectOverNccl(*plugin, device, group, std::move(store));
  });
}

}  // namespace baton
