// What a router's answer to a worker or to `baton drain` comes to.
#ifndef COMMON_RPC_CLUSTER_STATUS_H_
#define COMMON_RPC_CLUSTER_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace baton::rpc {

// As FromGrpc. Who knows no baton.v1.Cluster at all is a router's port for clients, as a rule: the
// message says so, and which port was meant.
absl::Status FromRouter(const grpc::Status& status);

}  // namespace baton::rpc

#endif  // COMMON_RPC_CLUSTER_STATUS_H_
