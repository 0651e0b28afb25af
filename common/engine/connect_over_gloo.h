// The one factory of communicators between processes. A library of its own: it brings the torch
// plugin along.
#ifndef COMMON_ENGINE_CONNECT_OVER_GLOO_H_
#define COMMON_ENGINE_CONNECT_OVER_GLOO_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/engine/connect_group.h"

namespace baton {

// Over Gloo, at an address of this host that the other ranks reach. Loads libtorch, whose backend
// Gloo is; FAILED_PRECONDITION or NOT_FOUND if that can't be.
absl::StatusOr<ConnectGroup> ConnectOverGloo(std::string host);

}  // namespace baton

#endif  // COMMON_ENGINE_CONNECT_OVER_GLOO_H_
