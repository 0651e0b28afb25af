// What a stage's options and its executor make of the limits of its cores.
#ifndef SERVICES_PREFILL_SERVICE_LIMITS_H_
#define SERVICES_PREFILL_SERVICE_LIMITS_H_

#include "absl/status/status.h"
#include "common/engine/executor.h"
#include "common/engine/sampling/constraints.h"
#include "services/prefill/chain/messages.h"
#include "services/prefill/core/chain_planner.h"
#include "services/prefill/core/member_grants.h"
#include "services/prefill/prefill_options.h"

namespace baton::prefill {

PlannerLimits LimitsOf(const PrefillOptions& options, const Executor& executor);
MemberGrantLimits GrantLimitsOf(const PrefillOptions& options, const Executor& executor);
PlanBounds BoundsOf(const PrefillOptions& options, const Executor& executor,
                    Constraints* constraints);
// INVALID_ARGUMENT names the option that does not fit the executor.
absl::Status CheckOptions(const PrefillOptions& options, const Executor& executor);

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_SERVICE_LIMITS_H_
