// A prompt's chunks on their way through a chain, and how fast any plan could be.
#ifndef COMMON_CHUNKING_FLOW_SHOP_H_
#define COMMON_CHUNKING_FLOW_SHOP_H_

#include <vector>

#include "common/chunking/stage_cost.h"

namespace baton {

struct Timeline {
  double first_token_us = 0;       // When the last stage has computed the last chunk.
  std::vector<double> busy_us;     // By stage.
  std::vector<double> longest_us;  // By stage, of one chunk.
};

// `chunk_tokens` one after the other, the first behind `prefix_length` tokens, on `stages` in
// order: a stage begins a chunk when the stage before is done with it, `hop_us` later, and it is
// itself done with the chunk before. Stages' and chunks' orders are the same, so there is nothing
// to decide. At least one stage.
Timeline RunChunks(const std::vector<StageCost>& stages, int prefix_length,
                   const std::vector<int>& chunk_tokens, double hop_us = 0);

// No plan of the prompt is faster. Of `stages` equal stages M equal chunks take
// (M + stages - 1)(overhead + work / M); the best M, which need not be whole, gives
//   (sqrt(work) + sqrt((stages - 1) overhead))^2.
// Unequal stages: the larger of what the slowest one has to do alone and the bound of as many of
// the fastest.
double FirstTokenBoundMicros(const std::vector<StageCost>& stages, int prefix_length, int tokens);

}  // namespace baton

#endif  // COMMON_CHUNKING_FLOW_SHOP_H_
