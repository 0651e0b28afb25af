// The cost of chunks of several prompts that share a plan: their time, expressed in tokens of the
// plan's first prompt. After a million tokens, one token takes as long as hundreds at the start of
// a prompt.
#ifndef COMMON_CHUNKING_TOKEN_PRICES_H_
#define COMMON_CHUNKING_TOKEN_PRICES_H_

#include <vector>

#include "common/chunking/chunk_plan.h"
#include "common/chunking/stage_cost.h"

namespace baton {

class TokenPrices {
 public:
  // Costs are unknown: every token costs one.
  TokenPrices() = default;
  // A plan begins with `tokens` (> 0) after `prefix_length`, each of which costs one. The stage
  // that takes longest for them sets the prices. Costs as in SetCosts of chunk_policy.h. Without
  // stages, or if tokens take no time, every token costs one.
  TokenPrices(const std::vector<StageCost>& stages, int prefix_length, int tokens);

  // The cost of a chunk, without the plan's own overhead. 0 without tokens.
  double Of(int prefix_length, int tokens) const;

  // The longest chunk of the prompt that costs at most `budget_tokens`, which is finite: all of it,
  // or whole pages. 0 if not even a page fits.
  int Affordable(const PromptShape& prompt, double budget_tokens) const;

 private:
  StageCost work_;       // Without a plan's own overhead.
  double token_us_ = 0;  // The time of a token that costs one; 0 if unknown.
};

}  // namespace baton

#endif  // COMMON_CHUNKING_TOKEN_PRICES_H_
