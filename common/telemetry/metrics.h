// The metrics of one process, by the table in metrics_table.h. Every series of the process's role
// exists, at zero, from construction on, so that a scrape always equals the table; but for those of
// a device, which are there only while they are known.
//
//   Metrics metrics({.role = MetricRole::kPrefill, .model_name = "tiny", .instance_id = "p-0"});
//   metrics.Observe(Metric::kChunkTokens, 2048);
//   metrics.Increment(Metric::kStageIdleSecondsTotal, 0.25, {"bubble"});
//   std::string text = metrics.Scrape();  // GET /metrics
#ifndef COMMON_TELEMETRY_METRICS_H_
#define COMMON_TELEMETRY_METRICS_H_

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/telemetry/metrics_table.h"
#include "common/types/drain_counts.h"

namespace baton {

struct MetricsIdentity {
  MetricRole role;
  std::string model_name;
  std::string instance_id;
  int stage = -1;  // --pp-rank of a prefill stage; adds the label `stage`.
  // --tp-rank of one of several processes of a stage or a decode service; adds the label `rank`.
  int rank = -1;
  std::string
      device;  // "cuda:1", which a worker computes on; empty: metrics of_device are not had.
};

// Values of a metric's labels in the table's order.
using LabelValues = std::initializer_list<std::string_view>;

// Thread-safe; an update is a few comparisons and an atomic operation. Using a metric that its role
// does not have, with the wrong operation or number of labels, is a broken invariant and ends the
// process.
class Metrics {
 public:
  explicit Metrics(const MetricsIdentity& identity);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Counters; `amount` >= 0.
  void Increment(Metric metric, double amount = 1, LabelValues labels = {});
  // Gauges.
  void Set(Metric metric, double value, LabelValues labels = {});
  void Add(Metric metric, double amount, LabelValues labels = {});
  // Those of_device; nullopt: the series is not there until it is set again.
  void SetOrRemove(Metric metric, std::optional<double> value);
  // Histograms.
  void Observe(Metric metric, double value, LabelValues labels = {});

  // Everything in Prometheus' text format 0.0.4 (kMetricsContentType).
  std::string Scrape();

 private:
  struct Registry;  // Hides prometheus-cpp from includers.
  std::unique_ptr<Registry> registry_;
};

// The label `outcome` of a request that ended with `code`.
const char* OutcomeLabel(absl::StatusCode code);

inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

// docs/metrics.md.
std::string MetricsMarkdown();

// The metrics of a drain, from the counts that a core keeps.

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

#endif  // COMMON_TELEMETRY_METRICS_H_
