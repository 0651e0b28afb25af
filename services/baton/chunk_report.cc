#include "services/baton/chunk_report.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/chunking/chunk_forecast.h"
#include "common/chunking/flow_shop.h"
#include "common/config/layer_split.h"
#include "services/prefill/prefill_options.h"

namespace baton {
namespace {

constexpr size_t kRunsShown = 24;

// As stage 0 would have them with this rule.
ChunkOptions OptionsOf(const PreflightReport& report, ChunkRule rule) {
  const v1::Options& values = report.values;
  prefill::PrefillOptions own =
      prefill::SchedulingOf(values, static_cast<int>(report.context_tokens));
  own.planner.chunk_rule = rule;
  if (report.auto_chunks)
    own.planner.chunk_tokens = static_cast<int>(report.auto_chunks->Of(rule).tokens);
  const auto page_size = static_cast<int>(values.page_size());
  // The limits' times, which cut nothing, are all that the bytes of a row go into.
  return prefill::ChunkOptionsOf(prefill::PlannerLimitsOf(own, page_size, /*row_bytes=*/0));
}

double Milliseconds(double micros) { return micros / 1000; }

// "2048, 12 x 4096, 1024": at most kRunsShown of them.
std::string SizesText(const std::vector<int>& chunks) {
  std::vector<std::string> runs;
  for (size_t begin = 0; begin < chunks.size();) {
    size_t end = begin;
    while (end < chunks.size() && chunks[end] == chunks[begin]) ++end;
    const std::string size = absl::StrCat(chunks[begin]);
    runs.push_back(end - begin == 1 ? size : absl::StrCat(end - begin, " x ", size));
    begin = end;
  }
  if (runs.size() <= kRunsShown) return absl::StrJoin(runs, ", ");
  const std::string last = runs.back();
  runs.resize(kRunsShown - 2);
  return absl::StrCat(absl::StrJoin(runs, ", "), ", ..., ", last);
}

std::string RuleRow(const std::string& name, const ChunkForecast& forecast, double bound_us) {
  const auto [least, most] = std::minmax_element(forecast.chunks.begin(), forecast.chunks.end());
  const double first_token_us = forecast.timeline.first_token_us;
  return absl::StrFormat("%-12s %8d %9d %9d %12.1f %9.4f %8.4f\n", name, forecast.chunks.size(),
                         *most, *least, Milliseconds(first_token_us), first_token_us / bound_us,
                         forecast.bubble);
}

std::string StageRows(const PreflightReport& report, const ChunkForecast& forecast) {
  const auto split = config::SplitLayers(report.model->num_hidden_layers, report.values.pp_size(),
                                         report.values.pp_layer_partition());
  BATON_CHECK(split.ok()) << split.status();
  const Timeline& timeline = forecast.timeline;
  std::string rows = absl::StrFormat("%-12s %10s %12s %12s %8s\n", "stage", "layers", "busy ms",
                                     "longest ms", "bubble");
  for (size_t stage = 0; stage < timeline.busy_us.size(); ++stage) {
    const LayerRange& layers = (*split)[stage];
    absl::StrAppendFormat(&rows, "%-12d %10s %12.1f %12.1f %8.4f\n", stage,
                          absl::StrCat("[", layers.begin, ", ", layers.end, ")"),
                          Milliseconds(timeline.busy_us[stage]),
                          Milliseconds(timeline.longest_us[stage]),
                          1 - timeline.busy_us[stage] / timeline.first_token_us);
  }
  return rows;
}

std::string Configured(const std::string& rule, const ChunkForecast& forecast) {
  return absl::StrCat("* --chunk-policy ", rule, " cuts it into ", SizesText(forecast.chunks),
                      " tokens\n");
}

}  // namespace

std::string ChunkReportText(const PreflightReport& report) {
  const v1::Options& values = report.values;
  const auto tokens = static_cast<int>(values.chunk_plan());
  if (tokens == 0) return "";
  if (report.role == v1::OptionSpec::DECODE) {
    return "\na decode service cuts no prompts (--chunk-plan)\n";
  }
  const auto stages = static_cast<int>(values.pp_size());
  const ChunkRule asked = ParseChunkRule(values.chunk_policy()).value_or(ChunkRule::kFixed);
  // Where prompts are not cut, no other rule applies.
  const ChunkOptions own = OptionsOf(report, asked);
  const std::string rule = ChunkRuleName(own.rule);
  const std::vector<StageCost>& costs = report.chunks.stages;
  std::string text = absl::StrCat("\na prompt of ", tokens, " tokens alone in a chain of ", stages,
                                  stages == 1 ? " stage" : " stages");
  if (costs.empty()) {
    return absl::StrCat(
        text, "; what it takes is not known: ", report.chunks.missing,
        ".\nStages measure it when they start (--chunk-sweep-ms), and what they learn stage 0\n"
        "writes to --chunk-profile FILE, which shows it here. Without either\n",
        Configured(rule, ForecastChunks(own, {}, stages, tokens)));
  }
  absl::StrAppend(&text, "; costs by ", report.chunks.source, "\n\n");
  absl::StrAppendFormat(&text, "%-12s %8s %9s %9s %12s %9s %8s\n", "rule", "chunks", "largest",
                        "smallest", "TTFT ms", "to bound", "bubble");
  const double bound_us = FirstTokenBoundMicros(costs, 0, tokens);
  for (const ChunkRule other : {ChunkRule::kFixed, ChunkRule::kSglang, ChunkRule::kOptimal}) {
    const ChunkOptions options = OptionsOf(report, other);
    if (options.rule != other) continue;
    const std::string name = absl::StrCat(ChunkRuleName(other), other == own.rule ? " *" : "");
    absl::StrAppend(&text, RuleRow(name, ForecastChunks(options, costs, stages, tokens), bound_us));
  }
  absl::StrAppendFormat(&text, "%-12s %8s %9s %9s %12.1f %9.4f\n\n", "bound", "", "", "",
                        Milliseconds(bound_us), 1.0);
  const ChunkForecast forecast = ForecastChunks(own, costs, stages, tokens);
  return absl::StrCat(text, Configured(rule, forecast), "\n", StageRows(report, forecast));
}

}  // namespace baton
