// What a chunk costs a stage: the model that plans are made by.
#ifndef COMMON_CHUNKING_STAGE_COST_H_
#define COMMON_CHUNKING_STAGE_COST_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace baton {

// What the chunks of one plan amount to, one chunk or several of different prompts.
struct PlanWork {
  int64_t prefix_tokens = 0;  // L, summed over the chunks.
  int64_t tokens = 0;         // x
  double pairs = 0;           // 2 L x + x^2

  void Add(int prefix_length, int chunk_tokens);
};

// Of a coefficient: eleven days.
inline constexpr double kMaxCostMicros = 1e12;

// Microseconds of x tokens after a prefix of L:
//   overhead + prefix L + token max(x, floor) + attention (2 L x + x^2)
// The last term is the area under the causal mask, so it sums over chunks to the prompt's, wherever
// the prompt is cut; what a cut adds is overhead, the prefix term (that is read again for each
// chunk) and chunks below the floor, which take as long as one of floor_tokens: weights are read
// whatever the number of rows.
struct StageCost {
  double overhead_us = 0;
  double prefix_us = 0;     // A token of the prefix.
  double token_us = 0;      // A token of the chunk.
  double attention_us = 0;  // A pair of tokens, each way.
  int floor_tokens = 0;

  // `tokens` > 0.
  double Micros(int prefix_length, int tokens) const;
  double Micros(const PlanWork& work) const;
  // Of the whole prompt but for what cutting it adds: no plan takes a stage less.
  double WorkMicros(int prefix_length, int tokens) const;
  // Everything takes `factor` times as long.
  StageCost Times(double factor) const;
  // INVALID_ARGUMENT naming the coefficient that is no number from 0 to kMaxCostMicros, or if all
  // are zero.
  absl::Status Check() const;

  friend bool operator==(const StageCost&, const StageCost&) = default;
};

// Of the stage that takes longest. `stages` is not empty.
double SlowestMicros(const std::vector<StageCost>& stages, int prefix_length, int tokens);

}  // namespace baton

#endif  // COMMON_CHUNKING_STAGE_COST_H_
