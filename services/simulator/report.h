// Reports of a run, for people and programs. Pure: the same record gives the same text.
#ifndef SERVICES_SIMULATOR_REPORT_H_
#define SERVICES_SIMULATOR_REPORT_H_

#include <string>

#include "services/simulator/cluster_shape.h"
#include "services/simulator/run_record.h"
#include "services/simulator/summary.h"
#include "services/simulator/workload.h"
#include "services/timeline/timeline.h"

namespace baton::simulator {

struct ReportedRun {
  const ClusterShape& shape;
  const Workload& workload;
  const RunRecord& record;
  const Summary& summary;
  Objectives objectives;
};

std::string ReportTable(const ReportedRun& run);

// One JSON object; every field's name has its unit. `requests` has a row for each request, whose
// values `request_columns` names.
std::string ReportJson(const ReportedRun& run);

// The timeline of the run.
timeline::Timeline TimelineOf(const RunRecord& record);

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_REPORT_H_
