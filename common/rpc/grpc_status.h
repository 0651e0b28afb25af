// absl::Status is Baton's error type inside a process; grpc::Status with a v1::ErrorDetail carries
// it between processes, so that field, leg and instance survive the hop.
#ifndef COMMON_RPC_GRPC_STATUS_H_
#define COMMON_RPC_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton::v1 {
class RpcStatus;
}

namespace baton::rpc {

// Longer messages are cut here, at a character boundary: a status travels in HTTP/2 trailers, which
// gRPC limits to 8 KiB and which hold the message twice.
inline constexpr size_t kMaxStatusMessageBytes = 1536;
std::string Shortened(absl::string_view message);

// Whether the same request may succeed later or elsewhere: UNAVAILABLE, RESOURCE_EXHAUSTED,
// ABORTED.
bool IsRetryable(const absl::Status& status);

// Code and message, with FieldOf, LegOf and InstanceOf (common/base/status.h) in the details, and
// the hint of EndedByDrain or Overloaded as google.rpc.RetryInfo.
grpc::Status ToGrpc(const absl::Status& status);

// The same in a message of a stream; not OK.
v1::RpcStatus ToMessage(const absl::Status& status);
absl::Status FromMessage(const v1::RpcStatus& message);

// The reverse of ToGrpc. Details that can't be parsed are ignored: they come from a peer.
absl::Status FromGrpc(const grpc::Status& status);

// What a worker or `baton drain` makes of a router's answer. Who knows no baton.v1.Cluster at all
// is a router's port for clients, as a rule: the message says so, and which port was meant.
absl::Status FromRouter(const absl::Status& status);

}  // namespace baton::rpc

#endif  // COMMON_RPC_GRPC_STATUS_H_
