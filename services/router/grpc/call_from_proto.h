// Clients' messages as calls of the gateway. Nothing is checked here that the gateway checks; what
// a conversation may be is said by the HTTP front's reader, which both fronts share.
#ifndef SERVICES_ROUTER_GRPC_CALL_FROM_PROTO_H_
#define SERVICES_ROUTER_GRPC_CALL_FROM_PROTO_H_

#include <grpcpp/server_context.h>

#include "absl/status/statusor.h"
#include "proto/baton/v1/inference.pb.h"
#include "services/router/gateway.h"

namespace baton::router {

// With the shorter of the request's timeout and the deadline of `context`, its trace if `gateway`
// traces, and an id chosen if the request has none. A chat that cannot be one is counted as refused
// and is INVALID_ARGUMENT.
GenerateCall CallFromProto(const Gateway& gateway, const grpc::CallbackServerContext& context,
                           const v1::GenerateRequest& request);
absl::StatusOr<GenerateCall> CallFromProto(Gateway& gateway,
                                           const grpc::CallbackServerContext& context,
                                           const v1::ChatRequest& request);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_GRPC_CALL_FROM_PROTO_H_
