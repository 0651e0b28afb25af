// How a process gets the communicator that its executor sums over with its stage's other ranks.
#ifndef COMMON_ENGINE_CONNECT_GROUP_H_
#define COMMON_ENGINE_CONNECT_GROUP_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/collective/bootstrap_store.h"
#include "common/collective/communicator.h"

namespace baton {

// Connects to the group's other ranks, which find one another through the store; blocks until they
// are connected, the store ends, or they have had time enough.
using ConnectGroup = std::function<absl::StatusOr<std::shared_ptr<Communicator>>(
    const GroupDescription& group, std::shared_ptr<BootstrapStore> store)>;

}  // namespace baton

#endif  // COMMON_ENGINE_CONNECT_GROUP_H_
