// How a rule would cut a prompt that has the chain for itself, before anything runs.
#ifndef COMMON_CHUNKING_CHUNK_FORECAST_H_
#define COMMON_CHUNKING_CHUNK_FORECAST_H_

#include <vector>

#include "common/chunking/chunk_policy.h"
#include "common/chunking/flow_shop.h"
#include "common/chunking/stage_cost.h"

namespace baton {

// The chunks into which the planner would cut, by this policy, a prompt that is alone in a chain of
// `stages`. At least one token.
std::vector<int> CutPrompt(ChunkPolicy& policy, int prompt_tokens, int page_size, int stages);

struct ChunkForecast {
  std::vector<int> chunks;
  Timeline timeline;  // Empty if costs are not known.
  // The fraction of all stages' time until the first token in which they are idle.
  double bubble = 0;
};

// The costs of `stages` stages; empty if unknown, and the rule then does without them.
ChunkForecast ForecastChunks(const ChunkOptions& options, const std::vector<StageCost>& costs,
                             int stages, int prompt_tokens);

}  // namespace baton

#endif  // COMMON_CHUNKING_CHUNK_FORECAST_H_
