// Messages of proto/baton/v1/cluster.proto to and from the values of core/membership.h. What
// workers send is checked here as far as one message can be checked (syntax, ranges, sizes);
// whether workers fit together is the core's matter.
#ifndef SERVICES_ROUTER_WORKER_CONVERT_H_
#define SERVICES_ROUTER_WORKER_CONVERT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/baton/v1/cluster.pb.h"
#include "services/router/core/membership.h"

namespace baton::router {

// Errors are INVALID_ARGUMENT with the field.
absl::StatusOr<WorkerInfo> WorkerFromProto(const v1::WorkerInfo& proto);
absl::StatusOr<WorkerLoad> LoadFromProto(const v1::WorkerLoad& proto);

v1::WorkerInfo ToProto(const WorkerInfo& worker);
v1::ListedWorker ToProto(const Worker& worker, int64_t now_us);
v1::ListResponse ToProto(const Membership& membership, int64_t now_us);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_WORKER_CONVERT_H_
