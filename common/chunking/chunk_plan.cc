#include "common/chunking/chunk_plan.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/chunking/cutter.h"

namespace baton {

std::vector<int> PlanFixed(const PromptShape& prompt, int chunk_tokens) {
  std::vector<int> chunks;
  for (int left = prompt.tokens; left > 0; left -= chunks.back()) {
    chunks.push_back(FitChunk(left, chunk_tokens, prompt.page_size));
    BATON_CHECK(chunks.back() > 0)
        << "chunks of " << chunk_tokens << " tokens, pages of " << prompt.page_size;
  }
  return chunks;
}

int SglangChunk(int prefix_length, int page_size, const StageCost& cost, int base_tokens,
                double smooth_factor) {
  const int unit = SglangUnit(page_size);
  const double base = base_tokens;
  const double solved =
      PositiveRoot(cost.attention_us, cost.token_us + 2 * cost.attention_us * prefix_length,
                   cost.WorkMicros(0, base_tokens));
  const double smoothed = base + smooth_factor * (solved - base);
  const int floored = std::max(static_cast<int>(smoothed), base_tokens / 4);
  return std::max(unit, AlignDown(floored, unit));
}

std::vector<int> PlanSglang(const PromptShape& prompt, const StageCost& cost, int base_tokens,
                            double smooth_factor) {
  std::vector<int> chunks;
  int prefix = prompt.prefix_length;
  int left = prompt.tokens;
  while (left > 0) {
    const int tokens =
        chunks.empty() ? base_tokens
                       : SglangChunk(prefix, prompt.page_size, cost, base_tokens, smooth_factor);
    chunks.push_back(std::min(left, tokens));
    prefix += chunks.back();
    left -= chunks.back();
  }
  return chunks;
}

int LargestChunk(const PromptShape& prompt, const std::vector<StageCost>& stages, int max_tokens,
                 double limit_us) {
  return Cutter(prompt, stages, max_tokens).Largest(prompt.prefix_length, prompt.tokens, limit_us);
}

TokenPrices::TokenPrices(const std::vector<StageCost>& stages, int prefix_length, int tokens) {
  BATON_CHECK(tokens > 0) << tokens;
  for (StageCost work : stages) {
    work.overhead_us = 0;
    work.floor_tokens = 0;
    const double token_us = work.Micros(prefix_length, tokens) / tokens;
    if (token_us <= token_us_) continue;
    token_us_ = token_us;
    work_ = work;
  }
}

double TokenPrices::Of(int prefix_length, int tokens) const {
  if (token_us_ == 0 || tokens == 0) return tokens;
  return work_.Micros(prefix_length, tokens) / token_us_;
}

int TokenPrices::Affordable(const PromptShape& prompt, double budget_tokens) const {
  if (prompt.tokens <= 0 || budget_tokens <= 0) return 0;
  if (token_us_ == 0) {
    const double all = std::min<double>(budget_tokens, prompt.tokens);
    return FitChunk(prompt.tokens, static_cast<int>(all), prompt.page_size);
  }
  return LargestChunk(prompt, {work_}, prompt.tokens, budget_tokens * token_us_);
}

}  // namespace baton
