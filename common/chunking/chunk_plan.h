// Whole prompts cut in advance. Each of these rules is pure: the same prompt and costs give the
// same chunks.
#ifndef COMMON_CHUNKING_CHUNK_PLAN_H_
#define COMMON_CHUNKING_CHUNK_PLAN_H_

#include <vector>

#include "common/chunking/stage_cost.h"

namespace baton {

// Tokens of a prompt with `remaining_tokens` left that fit into `budget_tokens`: all of them, or
// as many whole pages as fit, so that the next chunk begins on a page boundary. 0: none fit.
constexpr int FitChunk(int remaining_tokens, int budget_tokens, int page_size) {
  if (remaining_tokens <= budget_tokens) return remaining_tokens;
  return budget_tokens / page_size * page_size;
}

struct PromptShape {
  int prefix_length = 0;  // Tokens that need no computing; whole pages.
  int tokens = 0;         // Behind them; > 0.
  int page_size = 1;      // Every chunk but the last ends on a page's end.
};

// As `--chunked-prefill-size`: every chunk has `chunk_tokens`, a multiple of the page size.
std::vector<int> PlanFixed(const PromptShape& prompt, int chunk_tokens);

// SGLang's rule (ChunkSizePredictor in its scheduler_pp_mixin.py): the first chunk has
// `base_tokens`; a later one as many as take the time that the base takes without a prefix,
// overhead apart, moved towards that from the base by `smooth_factor`, but not less than a quarter
// of the base, in whole pages of 64 tokens or more. It knows neither the number of stages nor the
// prompt's length.
// A chunk behind the first one.
constexpr int SglangUnit(int page_size) { return page_size > 64 ? page_size : 64; }
int SglangChunk(int prefix_length, int page_size, const StageCost& cost, int base_tokens,
                double smooth_factor);
std::vector<int> PlanSglang(const PromptShape& prompt, const StageCost& cost, int base_tokens,
                            double smooth_factor);

// The plan with the earliest first token for a prompt that has the chain for itself. On equal
// stages chunks of equal time are best, and how many of them is a matter of overhead against
// bubbles: for each number of chunks the shortest time in which the prompt can be cut into so few,
// and of these plans the fastest by RunChunks. So floors and pages cost what they must and no more.
// Where stages differ, chunks may take evenly more or less time from first to last; they may be
// SGLang's; and where they are few, single pages are moved between them as long as that helps. All
// that only if it is worth two thousandths. At most `max_tokens` a chunk (a multiple of the page
// size).
//
// Costs that pass StageCost::Check, and at least one stage. Takes some ten milliseconds for a
// prompt of 1M tokens, and some thirty where no two of 16 stages are equal. Rejected: dynamic
// programming over all cuts (TeraPipe, arXiv 2102.07988), which takes time quadratic in the pages
// and finds the same plans for equal stages without floors and prefix terms, and within a hundredth
// with them (tested).
std::vector<int> PlanOptimal(const PromptShape& prompt, const std::vector<StageCost>& stages,
                             int max_tokens);

// The first chunk of the prompt that takes no stage longer than `limit_us`: in whole pages, or all
// that is left. 0: not even a page does.
int LargestChunk(const PromptShape& prompt, const std::vector<StageCost>& stages, int max_tokens,
                 double limit_us);

// The cost of chunks of several prompts that share a plan: their time, expressed in tokens of the
// plan's first prompt. After a million tokens, one token takes as long as hundreds at the start of
// a prompt.
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

#endif  // COMMON_CHUNKING_CHUNK_PLAN_H_
