#include "common/engine/connect_over_gloo.h"

#include <utility>

#include "common/base/status.h"
#include "common/collective/threaded_communicator.h"
#include "common/engine/torch/torch_backend.h"

namespace baton {
namespace {

// Less than a chain's wiring waits for its stages, so that this status says why.
constexpr int64_t kConnectMs = 8000;

}  // namespace

absl::StatusOr<ConnectGroup> ConnectOverGloo(std::string host) {
  BATON_ASSIGN_OR_RETURN(const TorchPlugin* plugin, LoadTorchPlugin());
  return ConnectGroup([plugin, host = std::move(host)](const GroupDescription& group,
                                                       std::shared_ptr<BootstrapStore> store)
                          -> absl::StatusOr<std::shared_ptr<Communicator>> {
    const GlooOptions gloo = {
        .rank = group.rank, .size = group.size(), .host = host, .connect_timeout_ms = kConnectMs};
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<MessageTransport> transport,
                           plugin->connect_gloo(gloo, std::move(store)));
    BATON_ASSIGN_OR_RETURN(
        std::unique_ptr<Communicator> communicator,
        ThreadedCommunicator::Create(group, {}, std::move(transport), kConnectMs));
    return std::shared_ptr<Communicator>(std::move(communicator));
  });
}

}  // namespace baton
