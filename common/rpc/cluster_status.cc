#include "common/rpc/cluster_status.h"

#include "common/rpc/grpc_status.h"

namespace baton::rpc {

absl::Status FromRouter(const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::UNIMPLEMENTED) return FromGrpc(status);
  return absl::UnimplementedError(
      "no service baton.v1.Cluster there: --router-address takes the router's "
      "--cluster-port (30002 by default), not its --grpc-port for clients");
}

}  // namespace baton::rpc
