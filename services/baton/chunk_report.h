// What `baton validate --chunk-plan` shows: how each rule would cut a prompt, and what that would
// take each stage, beside what no plan can beat.
#ifndef SERVICES_BATON_CHUNK_REPORT_H_
#define SERVICES_BATON_CHUNK_REPORT_H_

#include <string>

#include "common/preflight/preflight.h"

namespace baton {

// For a prompt of --chunk-plan tokens; "" if that is 0. `report` has got as far as its
// memory: its model and its layers are known.
std::string ChunkReportText(const PreflightReport& report);

}  // namespace baton

#endif  // SERVICES_BATON_CHUNK_REPORT_H_
