// Whether a call may be served: one of the API keys, presented as the metadata
// "authorization: Bearer KEY".
#ifndef SERVICES_ROUTER_GRPC_AUTHORIZATION_H_
#define SERVICES_ROUTER_GRPC_AUTHORIZATION_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "common/secrets/secret_set.h"

namespace baton::router {

// UNAUTHENTICATED unless the call presents one of `api_keys`, or these ask for nothing.
grpc::Status CheckAuthorization(const grpc::CallbackServerContext& context, SecretSet& api_keys);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_GRPC_AUTHORIZATION_H_
