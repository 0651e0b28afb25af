// docs/metrics.md, from the table.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/telemetry/metrics.h"

namespace baton {
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
  return absl::StrJoin(roles, ", ");
}

std::string LabelsText(const MetricInfo& info) {
  return absl::StrJoin(info.labels, "; ", [](std::string* out, const MetricLabel& label) {
    absl::StrAppend(out, "`", label.name, "`: ", absl::StrJoin(label.values, ", "));
  });
}

}  // namespace

std::string MetricsMarkdown() {
  std::string text =
      "# Metrics\n\n"
      "Generated from `common/telemetry/metrics_table.h` by\n"
      "`bazel run //tools/docs:generate_docs -- metrics > docs/metrics.md`; do not edit.\n\n"
      "Every process answers `GET /metrics` in Prometheus' text format: the router on `--port`, a\n"
      "worker on `--metrics-port`. All series carry the labels `model_name`, `role` and\n"
      "`instance_id`, those of a prefill stage `stage` as well, and `rank` where a stage or a\n"
      "decode service is several processes. Every series of a process's role exists, at zero, from "
      "the start.\n\n"
      "| Name | Type | Unit | Roles | Labels | Meaning |\n"
      "|---|---|---|---|---|---|\n";
  for (const MetricInfo& info : kMetricsTable) {
    absl::StrAppend(&text, "| `", info.name, "` | ", TypeName(info.type), " | ", info.unit, " | ",
                    RolesOf(info), " | ", LabelsText(info), " | ", info.help, " |\n");
  }
  absl::StrAppend(&text, "\n## Buckets\n\n| Histogram | Upper bounds |\n|---|---|\n");
  for (const MetricInfo& info : kMetricsTable) {
    if (info.type != MetricType::kHistogram) continue;
    absl::StrAppend(&text, "| `", info.name, "` | ", absl::StrJoin(info.buckets, ", "), " |\n");
  }
  return text;
}

}  // namespace baton
