// `baton simulate`: what a cluster of these options would do with a workload, in virtual time.
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/baton/commands.h"
#include "services/simulator/report.h"
#include "services/simulator/simulated_cluster.h"
#include "services/timeline/timeline.h"

namespace baton {
namespace {

simulator::TimelineWindow WindowOf(const v1::Options& options) {
  if (options.svg().empty()) return {};
  return timeline::WindowOfMs(options.timeline_from_ms(), options.timeline_ms());
}

absl::Status Simulate(const v1::Options& options) {
  BATON_ASSIGN_OR_RETURN(const simulator::ClusterShape shape, simulator::ShapeOf(options));
  BATON_ASSIGN_OR_RETURN(const simulator::Workload workload, simulator::MakeWorkload(options));
  const simulator::TimelineWindow window = WindowOf(options);
  simulator::SimulatedCluster cluster(shape, workload, window);
  BATON_ASSIGN_OR_RETURN(const simulator::RunRecord record, cluster.Run());
  const simulator::Objectives objectives{options.slo_ttft_ms(), options.slo_tpot_ms()};
  const simulator::Summary summary = simulator::Summarize(record, objectives);
  const simulator::ReportedRun run{shape, workload, record, summary, objectives};
  const bool json_alone = options.json() == "-";
  std::fputs((json_alone ? simulator::ReportJson(run) : simulator::ReportTable(run)).c_str(),
             stdout);
  if (!options.json().empty() && !json_alone) {
    BATON_RETURN_IF_ERROR(WriteOutput(options.json(), simulator::ReportJson(run)));
  }
  if (options.svg().empty()) return absl::OkStatus();
  return WriteOutput(options.svg(),
                     timeline::TimelineSvg(simulator::TimelineOf(record), window,
                                           absl::StrCat(shape.profile.name, "; ", workload.text)));
}

}  // namespace

absl::Status RunSimulateCommand(const config::ParsedOptions& options) {
  return Simulate(options.values);
}

}  // namespace baton
