// What chunks of several prompts cost that share a plan: by the time they take, in tokens of the
// prompt that the plan begins with. Behind a million tokens, one takes as long as hundreds at the
// begin of a prompt.
#ifndef COMMON_CHUNKING_TOKEN_PRICES_H_
#define COMMON_CHUNKING_TOKEN_PRICES_H_

#include <vector>

#include "common/chunking/chunk_plan.h"
#include "common/chunking/stage_cost.h"

namespace baton {

class TokenPrices {
 public:
  // Nobody knows what chunks take: every token costs one.
  TokenPrices() = default;
  // A plan begins with `tokens` (> 0) behind `prefix_length`, which cost one each, all in all. The
  // stage that takes longest for them sets the prices. Costs as in SetCosts of chunk_policy.h; of
  // no stages, or if tokens take no time, every token costs one.
  TokenPrices(const std::vector<StageCost>& stages, int prefix_length, int tokens);

  // Of a chunk, beside what the plan costs by itself (its overhead). Of no tokens: 0.
  double Of(int prefix_length, int tokens) const;

  // The longest chunk of the prompt that costs at most `budget_tokens`, which is finite: all of
  // it, or whole pages. 0: not even a page does.
  int Affordable(const PromptShape& prompt, double budget_tokens) const;

 private:
  StageCost work_;       // Without what a plan costs by itself.
  double token_us_ = 0;  // Of what costs one. 0: not known.
};

}  // namespace baton

#endif  // COMMON_CHUNKING_TOKEN_PRICES_H_
