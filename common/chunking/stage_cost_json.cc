#include "common/chunking/stage_cost_json.h"

#include <string>

namespace baton {

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
