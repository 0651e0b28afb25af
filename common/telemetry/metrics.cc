// docs/metrics.md, from the table.
#include "common/telemetry/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/stdio_queue.h"
#include "common/base/sync.h"

namespace baton {
namespace {

const char* RoleLabel(MetricRole role) {
  switch (role) {
    case MetricRole::kRouter:
      return "router";
    case MetricRole::kPrefill:
      return "prefill";
    case MetricRole::kDecode:
      return "decode";
  }
  return "";
}

size_t SeriesCount(const MetricInfo& info) {
  size_t count = 1;
  for (const MetricLabel& label : info.labels) count *= label.values.size();
  return count;
}

// The labels of series `index`: its digits in the mixed radix of the labels' value counts.
prometheus::Labels LabelsOf(const MetricInfo& info, size_t index) {
  prometheus::Labels labels;
  for (size_t i = info.labels.size(); i-- > 0;) {
    const MetricLabel& label = info.labels[i];
    labels[label.name] = label.values[index % label.values.size()];
    index /= label.values.size();
  }
  return labels;
}

// The index whose labels are `values`; an unlisted value counts as its label's last one.
size_t SeriesIndex(const MetricInfo& info, LabelValues values) {
  BATON_CHECK(values.size() == info.labels.size())
      << info.name << " has " << info.labels.size() << " labels, not " << values.size();
  size_t index = 0;
  auto value = values.begin();
  for (const MetricLabel& label : info.labels) {
    size_t position = 0;
    while (position + 1 < label.values.size() && *value != label.values[position]) ++position;
    index = index * label.values.size() + position;
    ++value;
  }
  return index;
}

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct Metrics::Registry {
  // The series of one metric, by SeriesIndex. One of the three is filled; none if the role does not
  // have the metric. `registry` owns them.
  struct Series {
    std::vector<prometheus::Counter*> counters;
    std::vector<prometheus::Gauge*> gauges;
    std::vector<prometheus::Histogram*> histograms;
    // A metric of_device alone has it, and its series in `gauges` while that is there.
    prometheus::Family<prometheus::Gauge>* of_device = nullptr;
  };

  prometheus::Registry registry;
  std::vector<Series> series{kMetricsTable.size()};
  int64_t start_us = NowUs();
  Mutex mutex;
  uint64_t told_dropped_lines ABSL_GUARDED_BY(mutex) = 0;

  void BuildOfDevice(const MetricInfo& info, prometheus::Labels labels, const std::string& device) {
    labels[info.labels[0].name] = device;
    series[static_cast<size_t>(info.id)].of_device =
        &prometheus::BuildGauge().Name(info.name).Help(info.help).Labels(labels).Register(registry);
  }

  void Build(const MetricInfo& info, const prometheus::Labels& common) {
    Series& added = series[static_cast<size_t>(info.id)];
    const auto build = [&](auto builder, auto* pointers, auto... arguments) {
      auto& family = builder.Name(info.name).Help(info.help).Labels(common).Register(registry);
      for (size_t i = 0; i < SeriesCount(info); ++i) {
        pointers->push_back(&family.Add(LabelsOf(info, i), arguments...));
      }
    };
    switch (info.type) {
      case MetricType::kCounter:
        build(prometheus::BuildCounter(), &added.counters);
        return;
      case MetricType::kGauge:
        build(prometheus::BuildGauge(), &added.gauges);
        return;
      case MetricType::kHistogram:
        build(prometheus::BuildHistogram(), &added.histograms,
              prometheus::Histogram::BucketBoundaries(info.buckets.begin(), info.buckets.end()));
        return;
    }
  }

  template <typename T>
  T& Find(Metric metric, std::vector<T*> Series::*kind, LabelValues labels) {
    const MetricInfo& info = InfoOf(metric);
    const std::vector<T*>& pointers = series[static_cast<size_t>(metric)].*kind;
    BATON_CHECK(!pointers.empty()) << info.name << ": not in this role, or of another type";
    return *pointers[SeriesIndex(info, labels)];
  }
};

Metrics::Metrics(const MetricsIdentity& identity) : registry_(std::make_unique<Registry>()) {
  prometheus::Labels common = {{"model_name", identity.model_name},
                               {"role", RoleLabel(identity.role)},
                               {"instance_id", identity.instance_id}};
  if (identity.stage >= 0) common["stage"] = std::to_string(identity.stage);
  if (identity.rank >= 0) common["rank"] = std::to_string(identity.rank);
  for (const MetricInfo& info : kMetricsTable) {
    if ((info.roles & static_cast<uint8_t>(identity.role)) == 0) continue;
    if (!info.of_device) {
      registry_->Build(info, common);
    } else if (!identity.device.empty()) {
      registry_->BuildOfDevice(info, common, identity.device);
    }
  }
  Set(Metric::kUp, 1);
  Set(Metric::kBuildInfo, 1, {kBatonVersion});
  Set(Metric::kProcessStartTimeSeconds, UnixSeconds());
}

Metrics::~Metrics() = default;

void Metrics::Increment(Metric metric, double amount, LabelValues labels) {
  registry_->Find(metric, &Registry::Series::counters, labels).Increment(amount);
}

void Metrics::Set(Metric metric, double value, LabelValues labels) {
  registry_->Find(metric, &Registry::Series::gauges, labels).Set(value);
}

void Metrics::Add(Metric metric, double amount, LabelValues labels) {
  registry_->Find(metric, &Registry::Series::gauges, labels).Increment(amount);
}

void Metrics::SetOrRemove(Metric metric, std::optional<double> value) {
  Registry::Series& series = registry_->series[static_cast<size_t>(metric)];
  BATON_CHECK(series.of_device != nullptr) << InfoOf(metric).name << ": of no device here";
  MutexLock lock(&registry_->mutex);
  if (value.has_value()) {
    if (series.gauges.empty()) series.gauges.push_back(&series.of_device->Add({}));
    series.gauges[0]->Set(*value);
  } else if (!series.gauges.empty()) {
    series.of_device->Remove(series.gauges[0]);
    series.gauges.clear();
  }
}

void Metrics::Observe(Metric metric, double value, LabelValues labels) {
  registry_->Find(metric, &Registry::Series::histograms, labels).Observe(value);
}

std::string Metrics::Scrape() {
  const double uptime_seconds = static_cast<double>(NowUs() - registry_->start_us) * 1e-6;
  Set(Metric::kProcessUptimeSeconds, uptime_seconds);
  {
    MutexLock lock(&registry_->mutex);
    const uint64_t dropped = DroppedOutputLines();
    const uint64_t told = std::exchange(registry_->told_dropped_lines, dropped);
    Increment(Metric::kLogLinesDroppedTotal, static_cast<double>(dropped - told));
  }
  return prometheus::TextSerializer().Serialize(registry_->registry.Collect());
}

const char* OutcomeLabel(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return "ok";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return "invalid";
    case absl::StatusCode::kResourceExhausted:
      return "overloaded";
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
      return "cancelled";
    case absl::StatusCode::kDeadlineExceeded:
      return "deadline_exceeded";
    case absl::StatusCode::kUnavailable:
      return "unavailable";
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
      return "internal";
    default:
      return "other";
  }
}

namespace {

const char* TypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "";
}

std::string RolesOf(const MetricInfo& info) {
  std::vector<std::string> roles;
  const auto has = [&](MetricRole role) { return (info.roles & static_cast<uint8_t>(role)) != 0; };
  if (has(MetricRole::kRouter)) roles.emplace_back("router");
  if (has(MetricRole::kPrefill)) roles.emplace_back("prefill");
  if (has(MetricRole::kDecode)) roles.emplace_back("decode");
  if (roles.size() == 3) return "all";
  return absl::StrJoin(roles, ", ");
}

std::string LabelsText(const MetricInfo& info) {
  return absl::StrJoin(info.labels, "; ", [](std::string* out, const MetricLabel& label) {
    absl::StrAppend(out, "`", label.name, "`: ", absl::StrJoin(label.values, ", "));
  });
}

// Histograms with the same buckets share a line.
std::string BucketsText() {
  std::vector<std::pair<std::string, std::string>> lines;  // Upper bounds, and the histograms.
  for (const MetricInfo& info : kMetricsTable) {
    if (info.type != MetricType::kHistogram) continue;
    const std::string bounds = absl::StrJoin(info.buckets, ", ");
    const std::string name = absl::StrCat("`", info.name, "`");
    const auto same = std::find_if(lines.begin(), lines.end(),
                                   [&bounds](const auto& line) { return line.first == bounds; });
    if (same != lines.end()) {
      absl::StrAppend(&same->second, ", ", name);
    } else {
      lines.emplace_back(bounds, name);
    }
  }
  std::string text;
  for (const auto& [bounds, names] : lines) absl::StrAppend(&text, "- ", names, ": ", bounds, "\n");
  return text;
}

}  // namespace

std::string MetricsMarkdown() {
  std::string text =
      "# Metrics\n\n"
      "Generated from `common/telemetry/metrics_table.h` by `./dev docs`; do not edit.\n\n"
      "Every process answers `GET /metrics` in Prometheus' text format: the router on `--port`, a\n"
      "worker on `--metrics-port`. All series carry the labels `model_name`, `role` and\n"
      "`instance_id`, those of a prefill stage `stage` as well, and `rank` where a stage or a\n"
      "decode service is several processes. Every series of a process's role exists, at zero, "
      "from\n"
      "the start. Those with a `device` exist only on workers on a GPU whose driver answers.\n\n"
      "In brackets: type and unit, where the name does not say it; the roles that export it; its "
      "own\n"
      "labels.\n\n";
  for (const MetricInfo& info : kMetricsTable) {
    const std::string labels = LabelsText(info);
    const bool named = absl::StrContains(info.name, info.unit);  // The name says the unit.
    absl::StrAppend(&text, "- `", info.name, "` (", TypeName(info.type), named ? "" : ", ",
                    named ? "" : info.unit, "; ", RolesOf(info), labels.empty() ? "" : "; ", labels,
                    "): ", info.help, "\n");
  }
  absl::StrAppend(&text, "\n## Buckets\n\nUpper bounds of histograms:\n\n", BucketsText());
  return text;
}

}  // namespace baton
