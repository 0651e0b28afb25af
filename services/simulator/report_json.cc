#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "services/simulator/report.h"

namespace baton::simulator {
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

Json ClusterJson(const ClusterShape& shape) {
  Json layers = Json::array();
  for (const LayerRange& stage : shape.stages) layers.push_back(stage.size());
  return {{"profile", shape.profile.name},
          {"chains", shape.chains},
          {"stage_layers", layers},
          {"decodes", shape.decodes},
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
          {"kv_pages_capacity", chain.page_count}};
}

Json DecodeJson(const DecodeRecord& decode, int64_t end_us) {
  return {{"steps", decode.steps},
          {"busy_us", decode.busy_us},
          {"waiting_requests", ToJson(decode.waiting, end_us)},
          {"running_requests", ToJson(decode.running, end_us)},
          {"kv_pages", ToJson(decode.pages, end_us)},
          {"kv_pages_capacity", decode.page_count}};
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
          absl::StatusCodeToString(request.status.code())};
}

}  // namespace

std::string ReportJson(const ReportedRun& run) {
  const Summary& summary = run.summary;
  const int64_t end_us = run.record.end_us;
  Json failed = Json::object();
  for (const auto& [code, count] : summary.failed) failed[code] = count;
  Json chains = Json::array();
  for (const ChainRecord& chain : run.record.chains) chains.push_back(ChainJson(chain, end_us));
  Json decodes = Json::array();
  for (const DecodeRecord& decode : run.record.decodes) {
    decodes.push_back(DecodeJson(decode, end_us));
  }
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
      {"slo_ttft_ms", run.objectives.ttft_ms},
      {"slo_tpot_ms", run.objectives.tpot_ms},
      {"good_requests", summary.good},
      {"goodput_per_s", summary.goodput_per_s},
      {"router_waiting_requests", ToJson(run.record.waiting, end_us)},
      {"chains", std::move(chains)},
      {"decodes", std::move(decodes)},
      {"request_columns",
       {"arrival_us", "prompt_tokens", "output_tokens", "first_token_us", "last_token_us",
        "attempts", "chain", "decode", "status"}},
      {"requests", std::move(rows)},
  };
  return document.dump() + "\n";
}

}  // namespace baton::simulator
