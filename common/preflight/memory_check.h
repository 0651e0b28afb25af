// The part of the checks that is about memory: the host's and its GPUs'. Sizes the KV cache by
// --mem-fraction-static and says what is short.
#ifndef COMMON_PREFLIGHT_MEMORY_CHECK_H_
#define COMMON_PREFLIGHT_MEMORY_CHECK_H_

#include "common/config/options.h"
#include "common/preflight/memory_plan.h"
#include "common/preflight/preflight.h"

namespace baton {

// Settles report.values' --kv-cache-tokens, sets `memory` and `device_memory` and adds findings.
// `given` says which options a user has set.
void CheckMemory(const config::ParsedOptions& given, const ModelFacts& facts,
                 PreflightReport& report);

}  // namespace baton

#endif  // COMMON_PREFLIGHT_MEMORY_CHECK_H_
