#include "common/chunking/flow_shop.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace baton {

Timeline RunChunks(const std::vector<StageCost>& stages, int prefix_length,
                   const std::vector<int>& chunk_tokens, double hop_us) {
  Timeline timeline;
  timeline.busy_us.assign(stages.size(), 0);
  timeline.longest_us.assign(stages.size(), 0);
  std::vector<double> free_us(stages.size(), 0);
  for (const int tokens : chunk_tokens) {
    double arrives_us = 0;
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      const double takes_us = stages[stage].Micros(prefix_length, tokens);
      free_us[stage] = std::max(free_us[stage], arrives_us) + takes_us;
      arrives_us = free_us[stage] + hop_us;
      timeline.busy_us[stage] += takes_us;
      timeline.longest_us[stage] = std::max(timeline.longest_us[stage], takes_us);
    }
    prefix_length += tokens;
  }
  timeline.first_token_us = free_us.back();
  return timeline;
}

double FirstTokenBoundMicros(const std::vector<StageCost>& stages, int prefix_length, int tokens) {
  const auto others = static_cast<double>(stages.size() - 1);
  double slowest_us = 0;
  double of_fastest_us = std::numeric_limits<double>::infinity();
  for (const StageCost& stage : stages) {
    const double work_us = stage.WorkMicros(prefix_length, tokens);
    const double overhead_us = stage.overhead_us + stage.prefix_us * prefix_length;
    slowest_us = std::max(slowest_us, overhead_us + work_us);
    // There is at least one chunk.
    const double bound_us = others * work_us < overhead_us
                                ? (others + 1) * (overhead_us + work_us)
                                : std::pow(std::sqrt(work_us) + std::sqrt(others * overhead_us), 2);
    of_fastest_us = std::min(of_fastest_us, bound_us);
  }
  return std::max(slowest_us, of_fastest_us);
}

}  // namespace baton
