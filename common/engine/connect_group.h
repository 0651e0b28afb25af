// How a process gets the communicator over which its executor sums with the other ranks of its
// stage.
#ifndef COMMON_ENGINE_CONNECT_GROUP_H_
#define COMMON_ENGINE_CONNECT_GROUP_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/collective/bootstrap_store.h"
#include "common/collective/communicator.h"

namespace baton {

// Connects to the other ranks of the group, which exchange their addresses through the store.
// Blocks until all are connected, the store has ended, or the connection has timed out.
using ConnectGroup = std::function<absl::StatusOr<std::shared_ptr<Communicator>>(
    const GroupDescription& group, std::shared_ptr<BootstrapStore> store)>;

}  // namespace baton

#endif  // COMMON_ENGINE_CONNECT_GROUP_H_
