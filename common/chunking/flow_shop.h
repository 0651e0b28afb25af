// The times of a prompt's chunks in a chain, and a bound on the speed of any plan.
#ifndef COMMON_CHUNKING_FLOW_SHOP_H_
#define COMMON_CHUNKING_FLOW_SHOP_H_

#include <vector>

#include "common/chunking/stage_cost.h"

namespace baton {

struct Timeline {
  double first_token_us = 0;       // The end of the last chunk on the last stage.
  std::vector<double> busy_us;     // By stage.
  std::vector<double> longest_us;  // By stage, the longest chunk's.
};

// Runs the chunks `chunk_tokens` in order, the first one after `prefix_length` tokens, on `stages`
// in order. A stage starts a chunk when the stage before has finished it and `hop_us` have passed,
// and when it has itself finished the chunk before. All stages have the same order of chunks, so
// nothing has to be decided. At least one stage.
Timeline RunChunks(const std::vector<StageCost>& stages, int prefix_length,
                   const std::vector<int>& chunk_tokens, double hop_us = 0);

// A lower bound for every plan of the prompt. On `stages` equal stages, M equal chunks take (M +
// stages - 1)(overhead + work / M); the best M, which need not be an integer, gives
//   (sqrt(work) + sqrt((stages - 1) overhead))^2.
// For unequal stages: the larger of the slowest stage's own time and the bound for as many of the
// fastest stage.
double FirstTokenBoundMicros(const std::vector<StageCost>& stages, int prefix_length, int tokens);

}  // namespace baton

#endif  // COMMON_CHUNKING_FLOW_SHOP_H_
