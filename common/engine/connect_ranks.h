// Creates communicators between processes. A target of its own, since it may need the torch plugin.
#ifndef COMMON_ENGINE_CONNECT_RANKS_H_
#define COMMON_ENGINE_CONNECT_RANKS_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/engine/connect_group.h"

namespace baton {

// Connects ranks that compute on `device`, written as --device: over Gloo between CPUs, at the
// address `host` of this machine, which the other ranks must reach; over NCCL, in the torch plugin,
// between GPUs. FAILED_PRECONDITION or NOT_FOUND if that can't be loaded. A missing device is
// reported when the group connects.
absl::StatusOr<ConnectGroup> ConnectRanks(std::string device, std::string host);

}  // namespace baton

#endif  // COMMON_ENGINE_CONNECT_RANKS_H_
