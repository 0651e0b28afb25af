// Reports of a run, for people and programs. Pure: the same record gives the same text.
#ifndef SERVICES_SIMULATOR_REPORT_H_
#define SERVICES_SIMULATOR_REPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "services/simulator/cluster_shape.h"
#include "services/simulator/run_record.h"
#include "services/simulator/workload.h"
#include "services/timeline/timeline.h"

namespace baton::simulator {

// ---- Summary ----
// What a run's record comes to: latencies, throughput, goodput, and how stages spent their time.

// Quantiles are nearest ranks: the smallest value such that the given share of values is not above
// it.
struct Distribution {
  int64_t count = 0;
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double most = 0;
};
Distribution DistributionOf(std::vector<double> values);
Distribution DistributionOf(const TimeHistogram& times);  // Milliseconds.

// The limits within which a request counts as good; 0 means no limit.
struct Objectives {
  int64_t ttft_ms = 0;
  int64_t tpot_ms = 0;
};

struct Summary {
  int64_t requests = 0;
  int64_t answered = 0;
  std::map<std::string, int64_t> failed;  // By the status's code; "RESOURCE_EXHAUSTED".
  std::string first_failure;              // The first failed request's.
  int64_t retried = 0;                    // Requests that took more than one attempt.

  // Over answered requests; milliseconds.
  Distribution ttft_ms;
  Distribution tpot_ms;  // Over answers with two tokens or more.
  Distribution itl_ms;   // Between consecutive tokens, over all requests; to within two percent.
  Distribution end_ms;   // From arrival to the last token.

  double seconds = 0;  // Virtual, from the first arrival's time base to the last end.
  double requests_per_s = 0;
  double prompt_tokens_per_s = 0;
  double output_tokens_per_s = 0;
  double cached_ratio = 0;  // Prompt tokens that chains had cached, of all.
  int64_t good = 0;
  double goodput_per_s = 0;
};

Summary Summarize(const RunRecord& record, const Objectives& objectives);

// ---- Report ----

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
