#include "common/chunking/cutter.h"

#include <algorithm>
#include <cmath>

namespace baton {

Cutter::Cutter(const PromptShape& prompt, const std::vector<StageCost>& stages, int max_tokens)
    : prompt_(prompt), max_tokens_(max_tokens) {
  for (const StageCost& stage : stages) {
    const bool known = std::find(stages_.begin(), stages_.end(), stage) != stages_.end();
    if (!known) stages_.push_back(stage);
  }
}

double Cutter::Micros(int prefix_length, int tokens) const {
  return SlowestMicros(stages_, prefix_length, tokens);
}

template <typename Take>
int Cutter::Walk(const TimeLimit& limit, int most, Take take) const {
  const double first_us = limit.us * (1 - limit.slope / 2);
  const double token_us = limit.us * limit.slope / prompt_.tokens;
  int count = 0;
  for (int done = 0; done < prompt_.tokens; ++count) {
    if (count == most) return INT_MAX;
    const int tokens =
        Largest(prompt_.prefix_length + done, prompt_.tokens - done, first_us + token_us * done);
    if (tokens == 0) return INT_MAX;
    take(tokens);
    done += tokens;
  }
  return count;
}

std::vector<int> Cutter::Cut(const TimeLimit& limit, int most) const {
  std::vector<int> chunks;
  const int count = Walk(limit, most, [&chunks](int tokens) { chunks.push_back(tokens); });
  if (count > most) chunks.clear();
  return chunks;
}

int Cutter::Count(double limit_us, int most) const {
  return Walk({.us = limit_us}, most, [](int /*tokens*/) {});
}

int Cutter::Largest(int prefix_length, int left, double limit_us) const {
  int tokens = FitChunk(left, max_tokens_, prompt_.page_size);
  for (const StageCost& stage : stages_) {
    tokens = std::min(tokens, LargestOn(stage, prefix_length, left, limit_us));
  }
  return tokens;
}

int Cutter::LargestOn(const StageCost& stage, int prefix_length, int left, double limit_us) const {
  const double rest_us = limit_us - stage.overhead_us - stage.prefix_us * prefix_length;
  const double pairs_us = 2 * stage.attention_us * prefix_length;
  double tokens = PositiveRoot(stage.attention_us, stage.token_us + pairs_us, rest_us);
  if (tokens < stage.floor_tokens) {
    const double floor_us = stage.token_us * stage.floor_tokens;
    if (rest_us < floor_us) return 0;
    tokens = stage.attention_us == 0
                 ? stage.floor_tokens
                 : PositiveRoot(stage.attention_us, pairs_us, rest_us - floor_us);
  }
  // A root that is an integer except for rounding counts as one.
  tokens += 1e-6;
  return tokens >= left ? left : AlignDown(tokens, prompt_.page_size);
}

}  // namespace baton
