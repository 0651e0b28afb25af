// What a failed call to a worker becomes: a status that says which leg failed on which instance,
// and what can be done about it.
#ifndef SERVICES_ROUTER_LEGS_LEG_STATUS_H_
#define SERVICES_ROUTER_LEGS_LEG_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "services/router/legs/worker_channels.h"

namespace baton::router {

// `leg`: "prefill" or "decode". `call`: "Decode.Reserve". Keeps what the worker itself said; a
// status that never came from it (a refused connection) is described from here. OK stays OK.
absl::Status LegStatus(const grpc::Status& status, const std::string& leg, const std::string& call,
                       const WorkerStubs& worker);

// An answer that breaks the protocol: INTERNAL.
absl::Status LegProtocolError(const std::string& message, const std::string& leg,
                              const WorkerStubs& worker);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_LEGS_LEG_STATUS_H_
