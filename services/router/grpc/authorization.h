// Whether a call may be served: --api-key, presented as the metadata "authorization: Bearer KEY".
#ifndef SERVICES_ROUTER_GRPC_AUTHORIZATION_H_
#define SERVICES_ROUTER_GRPC_AUTHORIZATION_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <string>

namespace baton::router {

// UNAUTHENTICATED unless the call presents `api_key`; an empty key asks for nothing. Takes the same
// time for every wrong key of a length.
grpc::Status CheckAuthorization(const grpc::CallbackServerContext& context,
                                const std::string& api_key);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_GRPC_AUTHORIZATION_H_
