#include "services/simulator/report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace baton::simulator {
namespace {

double Rank(const std::vector<double>& sorted, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<size_t>(rank, 1) - 1];
}

bool Good(const RequestRecord& request, const Objectives& objectives) {
  const auto within = [](double micros, int64_t limit_ms) {
    return limit_ms == 0 || micros <= static_cast<double>(limit_ms) * 1e3;
  };
  return within(static_cast<double>(request.ttft_us()), objectives.ttft_ms) &&
         within(request.tpot_us(), objectives.tpot_ms);
}

}  // namespace

Distribution DistributionOf(std::vector<double> values) {
  Distribution result;
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  result.count = static_cast<int64_t>(values.size());
  result.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  result.p50 = Rank(values, 0.5);
  result.p90 = Rank(values, 0.9);
  result.p99 = Rank(values, 0.99);
  result.most = values.back();
  return result;
}

Distribution DistributionOf(const TimeHistogram& times) {
  if (times.count() == 0) return {};
  return {times.count(),
          times.MeanUs() * 1e-3,
          times.QuantileUs(0.5) * 1e-3,
          times.QuantileUs(0.9) * 1e-3,
          times.QuantileUs(0.99) * 1e-3,
          static_cast<double>(times.most_us()) * 1e-3};
}

Summary Summarize(const RunRecord& record, const Objectives& objectives) {
  Summary summary;
  std::vector<double> ttft_ms;
  std::vector<double> tpot_ms;
  std::vector<double> end_ms;
  double prompt_tokens = 0;
  double output_tokens = 0;
  double cached_tokens = 0;
  for (const RequestRecord& request : record.requests) {
    ++summary.requests;
    if (request.attempts > 1) ++summary.retried;
    if (!request.answered()) {
      ++summary.failed[absl::StatusCodeToString(request.status.code())];
      if (summary.first_failure.empty()) {
        summary.first_failure = std::string(request.status.message());
      }
      continue;
    }
    ++summary.answered;
    ttft_ms.push_back(static_cast<double>(request.ttft_us()) * 1e-3);
    if (request.tokens > 1) tpot_ms.push_back(request.tpot_us() * 1e-3);
    end_ms.push_back(static_cast<double>(request.last_token_us - request.arrival_us) * 1e-3);
    prompt_tokens += request.prompt_tokens;
    output_tokens += request.tokens;
    cached_tokens += request.cached_tokens;
    if (Good(request, objectives)) ++summary.good;
  }
  summary.ttft_ms = DistributionOf(std::move(ttft_ms));
  summary.tpot_ms = DistributionOf(std::move(tpot_ms));
  summary.itl_ms = DistributionOf(record.between_tokens);
  summary.end_ms = DistributionOf(std::move(end_ms));
  summary.cached_ratio = prompt_tokens == 0 ? 0 : cached_tokens / prompt_tokens;
  summary.seconds = static_cast<double>(record.end_us) * 1e-6;
  if (record.end_us == 0) return summary;
  summary.requests_per_s = static_cast<double>(summary.answered) / summary.seconds;
  summary.prompt_tokens_per_s = prompt_tokens / summary.seconds;
  summary.output_tokens_per_s = output_tokens / summary.seconds;
  summary.goodput_per_s = static_cast<double>(summary.good) / summary.seconds;
  return summary;
}

namespace {

using Json = nlohmann::ordered_json;
using prefill::StageDoing;

Json ToJson(const Distribution& values) {
  return {{"count", values.count}, {"mean", values.mean}, {"p50", values.p50},
          {"p90", values.p90},     {"p99", values.p99},   {"max", values.most}};
}

Json ToJson(const Gauge& gauge, int64_t end_us) {
  return {{"mean", gauge.Mean(end_us)}, {"max", gauge.most()}};
}

Json LayersJson(const std::vector<LayerRange>& stages) {
  Json layers = Json::array();
  for (const LayerRange& stage : stages) layers.push_back(stage.size());
  return layers;
}

Json ClusterJson(const ClusterShape& shape) {
  return {{"profile", shape.profile.name},
          {"routers", shape.routers},
          {"chains", shape.chains},
          {"stage_layers", LayersJson(shape.stages)},
          {"decodes", shape.decodes},
          {"decode_stage_layers", LayersJson(shape.decode_stages)},
          {"page_tokens", shape.layout.page_size},
          {"prefill_pages", shape.prefill_pages},
          {"decode_pages", shape.decode_pages},
          {"message_latency_us", shape.latency_us},
          {"activation_gbps", shape.activation_gbps},
          {"kv_gbps", shape.kv_gbps}};
}

Json ChainJson(const ChainRecord& chain, int64_t end_us) {
  Json stages = Json::array();
  for (const StageRecord& stage : chain.stages) {
    Json row{{"layers", stage.layers}, {"plans", stage.plans}, {"tokens", stage.tokens}};
    for (int i = 0; i < prefill::kStageDoings; ++i) {
      const char* const name = prefill::StageDoingName(static_cast<StageDoing>(i));
      row[absl::StrCat(name, "_us")] = stage.times.us[i];
    }
    stages.push_back(std::move(row));
  }
  return {{"stages", std::move(stages)},
          {"queued_requests", ToJson(chain.queued, end_us)},
          {"open_requests", ToJson(chain.open, end_us)},
          {"kv_pages", ToJson(chain.pages, end_us)},
          {"kv_pages_capacity", chain.page_count},
          {"retractions", chain.retractions}};
}

Json ChainsJson(const std::vector<ChainRecord>& chains, int64_t end_us) {
  Json rows = Json::array();
  for (const ChainRecord& chain : chains) rows.push_back(ChainJson(chain, end_us));
  return rows;
}

// Times of events that did not happen are null.
Json RowOf(const RequestRecord& request) {
  const auto time = [](int64_t us) { return us == kNotYetUs ? Json() : Json(us); };
  return {time(request.arrival_us),
          request.prompt_tokens,
          request.tokens,
          time(request.first_token_us),
          time(request.last_token_us),
          request.attempts,
          request.chain,
          request.decode,
          absl::StatusCodeToString(request.status.code()),
          request.cached_tokens};
}

}  // namespace

std::string ReportJson(const ReportedRun& run) {
  const Summary& summary = run.summary;
  const int64_t end_us = run.record.end_us;
  Json failed = Json::object();
  for (const auto& [code, count] : summary.failed) failed[code] = count;
  Json rows = Json::array();
  for (const RequestRecord& request : run.record.requests) rows.push_back(RowOf(request));
  const Json document{
      {"cluster", ClusterJson(run.shape)},
      {"workload", run.workload.text},
      {"seconds", summary.seconds},
      {"answered_requests", summary.answered},
      {"failed_requests", std::move(failed)},
      {"retried_requests", summary.retried},
      {"ttft_ms", ToJson(summary.ttft_ms)},
      {"tpot_ms", ToJson(summary.tpot_ms)},
      {"itl_ms", ToJson(summary.itl_ms)},
      {"last_token_ms", ToJson(summary.end_ms)},
      {"requests_per_s", summary.requests_per_s},
      {"prompt_tokens_per_s", summary.prompt_tokens_per_s},
      {"output_tokens_per_s", summary.output_tokens_per_s},
      {"cached_ratio", summary.cached_ratio},
      {"slo_ttft_ms", run.objectives.ttft_ms},
      {"slo_tpot_ms", run.objectives.tpot_ms},
      {"good_requests", summary.good},
      {"goodput_per_s", summary.goodput_per_s},
      {"router_waiting_requests", ToJson(run.record.waiting, end_us)},
      {"chains", ChainsJson(run.record.chains, end_us)},
      {"decodes", ChainsJson(run.record.decodes, end_us)},
      {"request_columns",
       {"arrival_us", "prompt_tokens", "output_tokens", "first_token_us", "last_token_us",
        "attempts", "chain", "decode", "status", "cached_tokens"}},
      {"requests", std::move(rows)},
  };
  return document.dump() + "\n";
}

namespace {

using prefill::StageDoing;

std::string Counted(int64_t count, const char* one, const char* more) {
  return absl::StrCat(count, " ", count == 1 ? one : more);
}

std::string StagesText(const std::vector<LayerRange>& stages) {
  const std::string layers = absl::StrJoin(
      stages, ",",
      [](std::string* out, const LayerRange& stage) { absl::StrAppend(out, stage.size()); });
  return absl::StrCat(" of ", Counted(static_cast<int64_t>(stages.size()), "stage", "stages"), " (",
                      layers, " layers)");
}

std::string ClusterText(const ClusterShape& shape) {
  const bool colocated = shape.prefill.planner.decodes;
  std::string chains = absl::StrCat(
      shape.profile.name, ": ", shape.routers > 1 ? absl::StrCat(shape.routers, " routers, ") : "",
      Counted(shape.chains, colocated ? "colocated chain" : "chain",
              colocated ? "colocated chains" : "chains"),
      StagesText(shape.stages));
  if (colocated) return chains;
  return absl::StrCat(chains, ", ", Counted(shape.decodes, "decode service", "decode services"),
                      shape.decode_stages.size() > 1 ? StagesText(shape.decode_stages) : "");
}

std::string Row(const char* name, const Distribution& values) {
  if (values.count == 0) return absl::StrFormat("%-14s %10s\n", name, "-");
  return absl::StrFormat("%-14s %10.1f %10.1f %10.1f %10.1f %10.1f\n", name, values.mean,
                         values.p50, values.p90, values.p99, values.most);
}

std::string Requests(const ReportedRun& run) {
  const Summary& summary = run.summary;
  std::string failures;
  for (const auto& [code, count] : summary.failed) {
    absl::StrAppend(&failures, ", ", count, " ", code);
  }
  if (!failures.empty()) absl::StrAppend(&failures, " (the first: ", summary.first_failure, ")");
  if (summary.retried > 0) {
    absl::StrAppend(&failures, ", ", summary.retried, " took more than one attempt");
  }
  return absl::StrFormat("requests       %d of %d answered in %.1f s of virtual time%s\n",
                         summary.answered, summary.requests, summary.seconds, failures);
}

std::string Rates(const ReportedRun& run) {
  const Summary& summary = run.summary;
  std::string text = absl::StrFormat(
      "throughput     %.3f requests/s, %.0f prompt tokens/s, %.0f answer tokens/s\n",
      summary.requests_per_s, summary.prompt_tokens_per_s, summary.output_tokens_per_s);
  if (summary.cached_ratio > 0) {
    absl::StrAppendFormat(&text, "cached         %.1f %% of the prompts' tokens\n",
                          100.0 * summary.cached_ratio);
  }
  const Objectives& objectives = run.objectives;
  if (objectives.ttft_ms == 0 && objectives.tpot_ms == 0) return text;
  std::string bounds;
  if (objectives.ttft_ms > 0) absl::StrAppend(&bounds, " TTFT <= ", objectives.ttft_ms, " ms");
  if (objectives.tpot_ms > 0) {
    absl::StrAppend(&bounds, bounds.empty() ? "" : ",", " TPOT <= ", objectives.tpot_ms, " ms");
  }
  const double share = summary.requests == 0 ? 0
                                             : 100.0 * static_cast<double>(summary.good) /
                                                   static_cast<double>(summary.requests);
  return absl::StrCat(text, absl::StrFormat("goodput        %.3f requests/s, %.1f %% of all:%s\n",
                                            summary.goodput_per_s, share, bounds));
}

// Percent of the total time, in the order of StageDoing.
std::string StageRows(const char* kind, const std::vector<ChainRecord>& chains) {
  std::string text;
  for (size_t chain = 0; chain < chains.size(); ++chain) {
    const auto& stages = chains[chain].stages;
    for (size_t i = 0; i < stages.size(); ++i) {
      const StageRecord& stage = stages[i];
      absl::StrAppendFormat(&text, "%-14s %7d", absl::StrCat(kind, "-", chain, " ", i),
                            stage.layers);
      const double all = std::max(1.0, static_cast<double>(stage.times.Together()));
      for (const int64_t part_us : stage.times.us) {
        absl::StrAppendFormat(&text, " %11.1f", 100.0 * static_cast<double>(part_us) / all);
      }
      const double plans = std::max(1.0, static_cast<double>(stage.plans));
      absl::StrAppendFormat(&text, " %8d %12.0f\n", stage.plans,
                            static_cast<double>(stage.tokens) / plans);
    }
  }
  return text;
}

std::string Stages(const ReportedRun& run) {
  std::string text = absl::StrFormat("\n%-14s %7s", "stage", "layers");
  for (int i = 0; i < prefill::kStageDoings; ++i) {
    absl::StrAppendFormat(&text, " %11s",
                          absl::StrCat(prefill::StageDoingName(static_cast<StageDoing>(i)), " %"));
  }
  absl::StrAppendFormat(&text, " %8s %12s\n", "plans", "tokens/plan");
  return absl::StrCat(text, StageRows("chain", run.record.chains),
                      StageRows("decode", run.record.decodes));
}

std::string Gauged(const char* name, const Gauge& gauge, int64_t end_us) {
  return absl::StrFormat("%-36s %12.2f %10d\n", name, gauge.Mean(end_us), gauge.most());
}

std::string Pages(const std::string& name, const Gauge& gauge, int page_count, int64_t end_us) {
  const double percent = 100.0 / page_count;
  return absl::StrFormat("%-36s %11.1f%% %9.1f%%  of %d\n", name, percent * gauge.Mean(end_us),
                         percent * static_cast<double>(gauge.most()), page_count);
}

std::string ChainQueues(const char* kind, const char* queued, const char* open,
                        const std::vector<ChainRecord>& chains, int64_t end_us) {
  std::string text;
  for (size_t i = 0; i < chains.size(); ++i) {
    const ChainRecord& chain = chains[i];
    const std::string name = absl::StrCat(kind, "-", i, ": ");
    absl::StrAppend(&text, Gauged((name + queued).c_str(), chain.queued, end_us),
                    Gauged((name + open).c_str(), chain.open, end_us),
                    Pages(name + "KV pages held", chain.pages, chain.page_count, end_us));
    if (chain.retractions > 0) {
      absl::StrAppendFormat(&text, "%-36s %12s %10d\n", name + "retractions", "",
                            chain.retractions);
    }
  }
  return text;
}

std::string Queues(const ReportedRun& run) {
  const RunRecord& record = run.record;
  const int64_t end_us = record.end_us;
  std::string text = absl::StrFormat("\n%-36s %12s %10s\n", "over time", "mean", "most");
  absl::StrAppend(&text, Gauged("router: requests that wait for room", record.waiting, end_us));
  return absl::StrCat(
      text, ChainQueues("chain", "requests queued", "requests in the chain", record.chains, end_us),
      ChainQueues("decode", "requests waiting", "requests in the batch", record.decodes, end_us));
}

}  // namespace

std::string ReportTable(const ReportedRun& run) {
  return absl::StrCat("cluster        ", ClusterText(run.shape), "\n", "workload       ",
                      run.workload.text, "\n", Requests(run), Rates(run),
                      absl::StrFormat("\n%-14s %10s %10s %10s %10s %10s\n", "milliseconds", "mean",
                                      "p50", "p90", "p99", "most"),
                      Row("TTFT", run.summary.ttft_ms), Row("TPOT", run.summary.tpot_ms),
                      Row("ITL", run.summary.itl_ms), Row("last token", run.summary.end_ms),
                      Stages(run), Queues(run));
}

timeline::Timeline TimelineOf(const RunRecord& record) {
  timeline::Timeline drawn;
  drawn.full = record.timeline_full;
  for (size_t chain = 0; chain < record.chains.size(); ++chain) {
    const std::vector<StageRecord>& stages = record.chains[chain].stages;
    std::vector<timeline::Row>& rows = drawn.chains.emplace_back();
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      rows.push_back({absl::StrCat("chain ", chain, ", stage ", stage), stages[stage].computes});
    }
  }
  return drawn;
}

}  // namespace baton::simulator
