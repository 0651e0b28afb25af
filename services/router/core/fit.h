// Whether one worker's description makes sense by itself, and whether two workers fit together.
#ifndef SERVICES_ROUTER_CORE_FIT_H_
#define SERVICES_ROUTER_CORE_FIT_H_

#include "absl/status/status.h"
#include "services/router/core/worker_info.h"

namespace baton::router {

// INVALID_ARGUMENT, naming the field, for what no cluster could use: ranges, geometry, counts.
absl::Status CheckWellFormed(const WorkerInfo& worker);

// OUT_OF_RANGE, naming both ranges, if the worker speaks no version of the protocol that this
// router does.
absl::Status CheckProtocol(const WorkerInfo& worker);

// FAILED_PRECONDITION, naming the property and both values, unless KV and activations may pass
// between the two: CheckModels and CheckPlace.
absl::Status CheckFit(const WorkerInfo& joining, const WorkerInfo& member);
// Protocol, model, weights of what both hold, dtype, layout.
absl::Status CheckModels(const WorkerInfo& joining, const WorkerInfo& member);
// Within one chain or decode service: its shape, what its ranks agree on, places and layers.
absl::Status CheckPlace(const WorkerInfo& joining, const WorkerInfo& member);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_FIT_H_
