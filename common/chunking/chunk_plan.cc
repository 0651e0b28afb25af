#include "common/chunking/chunk_plan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/chunking/flow_shop.h"

namespace baton {
namespace {

// The positive root of a x^2 + b x = rest, for a, b >= 0, not both zero; 0 if there is none. In
// the form that does not subtract neighbours when `a` is small.
double PositiveRoot(double a, double b, double rest) {
  if (rest <= 0) return 0;
  return 2 * rest / (b + std::sqrt(b * b + 4 * a * rest));
}

int AlignDown(double tokens, int unit) {
  const double units = std::floor(tokens / unit);
  return units >= static_cast<double>(INT32_MAX / unit) ? INT32_MAX / unit * unit
                                                        : static_cast<int>(units) * unit;
}

// Cuts a prompt so that no chunk takes any stage longer than a limit.
class Cutter {
 public:
  Cutter(const PromptShape& prompt, const std::vector<StageCost>& stages, int max_tokens)
      : prompt_(prompt), max_tokens_(max_tokens) {
    // Equal stages need to be asked once.
    for (const StageCost& stage : stages) {
      const bool known = std::find(stages_.begin(), stages_.end(), stage) != stages_.end();
      if (!known) stages_.push_back(stage);
    }
  }

  // Of the slowest stage.
  double Micros(int prefix_length, int tokens) const {
    return SlowestMicros(stages_, prefix_length, tokens);
  }

  // The fewest chunks within `limit_us` each; more than `most`, or INT32_MAX if there are none.
  // Taking as much as fits each time is best, for a prefix makes no chunk cheaper.
  int Count(double limit_us, int most, std::vector<int>* chunks) const {
    int prefix = prompt_.prefix_length;
    int left = prompt_.tokens;
    int count = 0;
    while (left > 0 && count <= most) {
      const int tokens = Largest(prefix, left, limit_us);
      if (tokens == 0) return INT32_MAX;
      if (chunks != nullptr) chunks->push_back(tokens);
      prefix += tokens;
      left -= tokens;
      ++count;
    }
    return left > 0 ? INT32_MAX : count;
  }

  int Largest(int prefix, int left, double limit_us) const {
    int tokens = FitChunk(left, max_tokens_, prompt_.page_size);
    for (const StageCost& stage : stages_) {
      tokens = std::min(tokens, LargestOn(stage, prefix, left, limit_us));
    }
    return tokens;
  }

 private:
  int LargestOn(const StageCost& stage, int prefix, int left, double limit_us) const {
    const double rest_us = limit_us - stage.overhead_us - stage.prefix_us * prefix;
    const double pairs_us = 2 * stage.attention_us * prefix;
    double tokens = PositiveRoot(stage.attention_us, stage.token_us + pairs_us, rest_us);
    if (tokens < stage.floor_tokens) {
      const double floor_us = stage.token_us * stage.floor_tokens;
      if (rest_us < floor_us) return 0;
      tokens = stage.attention_us == 0
                   ? stage.floor_tokens
                   : PositiveRoot(stage.attention_us, pairs_us, rest_us - floor_us);
    }
    // A root that is whole but for the last bit counts.
    tokens += 1e-6;
    return tokens >= left ? left : AlignDown(tokens, prompt_.page_size);
  }

  const PromptShape prompt_;
  const int max_tokens_;
  std::vector<StageCost> stages_;
};

// The shortest time limit that cuts the prompt into `count` chunks or fewer, up to `precision` of
// it.
double ShortestLimit(const Cutter& cutter, const PromptShape& prompt, int count, double precision) {
  // Chunks take together at least as long as the whole: no limit is shorter than this.
  double low_us = cutter.Micros(prompt.prefix_length, prompt.tokens) / count;
  double high_us = low_us;
  while (cutter.Count(high_us, count, nullptr) > count) {
    low_us = high_us;
    high_us *= 1.25;
  }
  while (high_us - low_us > precision * high_us) {
    const double middle_us = (low_us + high_us) / 2;
    (cutter.Count(middle_us, count, nullptr) > count ? low_us : high_us) = middle_us;
  }
  return high_us;
}

}  // namespace

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
  const int unit = std::max(page_size, 64);
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

std::vector<int> PlanOptimal(const PromptShape& prompt, const std::vector<StageCost>& stages,
                             int max_tokens) {
  BATON_CHECK(!stages.empty() && prompt.tokens > 0 && max_tokens >= prompt.page_size)
      << prompt.tokens << " tokens, at most " << max_tokens << " a chunk";
  const Cutter cutter(prompt, stages, max_tokens);
  const int fewest = (prompt.tokens + max_tokens - 1) / max_tokens;
  const int most = (prompt.tokens + prompt.page_size - 1) / prompt.page_size;
  std::vector<int> best;
  double best_us = std::numeric_limits<double>::infinity();
  const auto try_count = [&](int count, double precision) {
    std::vector<int> chunks;
    cutter.Count(ShortestLimit(cutter, prompt, count, precision), count, &chunks);
    const double us = RunChunks(stages, prompt.prefix_length, chunks).first_token_us;
    if (us < best_us) {
      best_us = us;
      best = std::move(chunks);
    }
    return us;
  };
  // Overhead grows with the number, bubbles shrink: one valley, but for the grain of pages. So: by
  // steps of a tenth over the whole range until it has risen for a while, then every number around
  // the best.
  constexpr int kRising = 4;
  constexpr double kCoarse = 1e-3;
  constexpr double kFine = 1e-5;
  int bottom = fewest;
  int rising = 0;
  double bottom_us = std::numeric_limits<double>::infinity();
  const auto step_of = [](int count) { return std::max(1, count / 10); };
  for (int count = fewest; count <= most && rising < kRising; count += step_of(count)) {
    const double us = try_count(count, kCoarse);
    rising = us < bottom_us ? 0 : rising + 1;
    if (us < bottom_us) {
      bottom_us = us;
      bottom = count;
    }
  }
  // Where chunks are a few pages, the next cuts into equal ones, with a page less in each, lie far
  // off, and what is between is worse than both: some chunks take as long, and there are more.
  constexpr int kFewPages = 8;
  const int pages_each = (most + bottom - 1) / bottom;
  for (int pages = pages_each - 1; pages > 0 && pages_each <= kFewPages; --pages) {
    const int finer = (most + pages - 1) / pages;
    const double us = try_count(finer, kCoarse);
    if (us >= bottom_us) continue;
    bottom_us = us;
    bottom = finer;
  }
  constexpr int kAround = 4;  // Of the flat bottom: more changes less than a thousandth.
  const int stride = std::max(1, step_of(bottom) / kAround);
  // Both ends again: where chunks are a few pages, a limit a thousandth too long may let a page
  // more into one of them.
  for (int count = std::max(fewest, bottom - step_of(bottom));
       count <= std::min(most, bottom + step_of(bottom)); count += stride) {
    try_count(count, kFine);
  }
  return best;
}

}  // namespace baton
