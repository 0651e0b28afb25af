// The metrics of a drain, from the counts that a core keeps.
#ifndef COMMON_TELEMETRY_DRAIN_METRICS_H_
#define COMMON_TELEMETRY_DRAIN_METRICS_H_

#include "common/telemetry/metrics.h"
#include "common/types/drain_counts.h"

namespace baton {

// One thread.
class DrainMetrics {
 public:
  void Update(Metrics& metrics, const DrainCounts& counts, bool draining) {
    const auto advance = [&](const char* cause, int64_t now, int64_t before) {
      if (now == before) return;
      metrics.Increment(Metric::kDrainEndedRequestsTotal, static_cast<double>(now - before),
                        {cause});
    };
    advance("refused", counts.refused_total, last_.refused_total);
    advance("handed_back", counts.handed_back_total, last_.handed_back_total);
    advance("time_over", counts.time_over_total, last_.time_over_total);
    advance("worker", counts.worker_total, last_.worker_total);
    last_ = counts;
    metrics.Set(Metric::kDraining, draining ? 1 : 0);
  }

 private:
  DrainCounts last_;
};

}  // namespace baton

#endif  // COMMON_TELEMETRY_DRAIN_METRICS_H_
