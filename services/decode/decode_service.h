// A decode service, or one of its stages or ranks: a chain (services/prefill) whose prompts others
// read, with the lease table that takes in this process's part of their KV, and on stage 0's rank 0
// the calls of routers.
#ifndef SERVICES_DECODE_DECODE_SERVICE_H_
#define SERVICES_DECODE_DECODE_SERVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "services/prefill/prefill_options.h"
#include "services/prefill/prefill_service.h"

namespace baton::decode {

// `options`: as SchedulingOfDecode makes them; `chain_id` may be empty for a service of one
// process. `parts`: all but those of a chain that others decode for. INVALID_ARGUMENT for options
// that don't fit the executor; UNAVAILABLE if it cannot listen. Whether another process than the
// first is ready says nothing of requests: that they are taken is the first's to report.
absl::StatusOr<std::unique_ptr<prefill::PrefillService>> CreateDecodeService(
    const prefill::PrefillOptions& options, const prefill::PrefillService::Parts& parts);

}  // namespace baton::decode

#endif  // SERVICES_DECODE_DECODE_SERVICE_H_
