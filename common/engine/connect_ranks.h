// The one factory of communicators between processes. A library of its own: it brings the torch
// plugin along.
#ifndef COMMON_ENGINE_CONNECT_RANKS_H_
#define COMMON_ENGINE_CONNECT_RANKS_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/engine/connect_group.h"

namespace baton {

// For ranks that compute on `device`, as --device says it: over Gloo between CPUs, at an address of
// this host that the other ranks reach; over NCCL between GPUs. Loads libtorch, whose backends both
// are; FAILED_PRECONDITION or NOT_FOUND if that can't be. Whether the device is there is what the
// group's connecting says.
absl::StatusOr<ConnectGroup> ConnectRanks(std::string device, std::string host);

}  // namespace baton

#endif  // COMMON_ENGINE_CONNECT_RANKS_H_
