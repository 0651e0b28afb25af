#include "common/chunking/stage_cost.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/json/json_section.h"

namespace baton {

void PlanWork::Add(int prefix_length, int chunk_tokens) {
  const double prefix = prefix_length;
  const double chunk = chunk_tokens;
  prefix_tokens += prefix_length;
  tokens += chunk_tokens;
  pairs += 2 * prefix * chunk + chunk * chunk;
}

double StageCost::WorkMicros(int prefix_length, int tokens) const {
  const double prefix = prefix_length;
  const double chunk = tokens;
  return token_us * chunk + attention_us * (2 * prefix * chunk + chunk * chunk);
}

double StageCost::Micros(int prefix_length, int tokens) const {
  PlanWork work;
  work.Add(prefix_length, tokens);
  return Micros(work);
}

double StageCost::Micros(const PlanWork& work) const {
  return overhead_us + prefix_us * static_cast<double>(work.prefix_tokens) +
         token_us * static_cast<double>(std::max<int64_t>(work.tokens, floor_tokens)) +
         attention_us * work.pairs;
}

StageCost StageCost::Times(double factor) const { return OfLayers(factor, factor); }

StageCost StageCost::OfLayers(double layers, double work) const {
  return {.overhead_us = work * overhead_us,
          .prefix_us = layers * prefix_us,
          .token_us = work * token_us,
          .attention_us = layers * attention_us,
          .floor_tokens = floor_tokens};
}

absl::Status StageCost::Check() const {
  for (const auto& [name, value] :
       {std::pair("overhead_us", overhead_us), std::pair("prefix_us", prefix_us),
        std::pair("token_us", token_us), std::pair("attention_us", attention_us)}) {
    if (value >= 0 && value <= kMaxCostMicros) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", value, ", expected 0 to ", kMaxCostMicros));
  }
  if (floor_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("floor_tokens is ", floor_tokens, ", expected none or more"));
  }
  if (token_us > 0 || attention_us > 0) return absl::OkStatus();
  return absl::InvalidArgumentError("token_us and attention_us are zero: tokens cost nothing");
}

double WorkOf(const std::vector<double>& layer_work, LayerRange range) {
  return std::accumulate(layer_work.begin() + range.begin, layer_work.begin() + range.end, 0.0);
}

double SlowestMicros(const std::vector<StageCost>& stages, int prefix_length, int tokens) {
  double slowest_us = 0;
  for (const StageCost& stage : stages) {
    slowest_us = std::max(slowest_us, stage.Micros(prefix_length, tokens));
  }
  return slowest_us;
}

void ReadStageCost(JsonSection& section, std::optional<double> otherwise, StageCost& cost) {
  section.Number("overhead_us", 0, kMaxCostMicros, otherwise, cost.overhead_us);
  section.Number("prefix_us", 0, kMaxCostMicros, otherwise, cost.prefix_us);
  section.Number("token_us", 0, kMaxCostMicros, std::nullopt, cost.token_us);
  section.Number("attention_us", 0, kMaxCostMicros, otherwise, cost.attention_us);
  if (const absl::Status status = cost.Check(); !status.ok()) {
    section.Fail("token_us", std::string(status.message()));
  }
}

}  // namespace baton
