#include "common/chunking/token_prices.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton {

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
