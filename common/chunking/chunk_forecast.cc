#include "common/chunking/chunk_forecast.h"

#include <memory>
#include <numeric>

#include "common/base/check.h"
#include "common/chunking/chunk_plan.h"

namespace baton {

std::vector<int> CutPrompt(ChunkPolicy& policy, int prompt_tokens, int page_size, int stages) {
  std::vector<int> chunks;
  for (int done = 0; done < prompt_tokens; done += chunks.back()) {
    const int left = prompt_tokens - done;
    const int budget =
        policy.PlanTokens({.prefix_length = done, .remaining_tokens = left, .stages = stages});
    chunks.push_back(FitChunk(left, budget, page_size));
    BATON_CHECK(chunks.back() > 0) << "a budget of " << budget << " tokens is no page";
  }
  return chunks;
}

ChunkForecast ForecastChunks(const ChunkOptions& options, const std::vector<StageCost>& costs,
                             int stages, int prompt_tokens) {
  const std::unique_ptr<ChunkPolicy> policy = MakeChunkPolicy(options);
  policy->SetCosts(costs);
  ChunkForecast forecast;
  forecast.chunks = CutPrompt(*policy, prompt_tokens, options.page_size, stages);
  if (costs.empty()) return forecast;
  forecast.timeline = RunChunks(costs, 0, forecast.chunks);
  const std::vector<double>& busy_us = forecast.timeline.busy_us;
  const double all_us = forecast.timeline.first_token_us * static_cast<double>(busy_us.size());
  forecast.bubble = 1 - std::accumulate(busy_us.begin(), busy_us.end(), 0.0) / all_us;
  return forecast;
}

}  // namespace baton
