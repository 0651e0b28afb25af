// What a picture shows of a simulated run.
#ifndef SERVICES_SIMULATOR_RUN_TIMELINE_H_
#define SERVICES_SIMULATOR_RUN_TIMELINE_H_

#include "services/simulator/run_record.h"
#include "services/timeline/timeline.h"

namespace baton::simulator {

timeline::Timeline TimelineOf(const RunRecord& record);

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_RUN_TIMELINE_H_
