// Cuts a prompt into chunks by the time that each may take.
#ifndef COMMON_CHUNKING_CUTTER_H_
#define COMMON_CHUNKING_CUTTER_H_

#include <climits>
#include <cmath>
#include <vector>

#include "common/chunking/chunk_plan.h"
#include "common/chunking/stage_cost.h"

namespace baton {

// The longest time that a chunk may take in any stage. It may be constant along the prompt, or grow
// or shrink linearly from its first token to its last.
struct TimeLimit {
  double us = 0;     // The limit in the middle of the prompt.
  double slope = 0;  // The growth from end to end divided by `us`; in (-2, 2).
};

class Cutter {
 public:
  // `stages` is not empty.
  Cutter(const PromptShape& prompt, const std::vector<StageCost>& stages, int max_tokens);

  // The time of the slowest stage.
  double Micros(int prefix_length, int tokens) const;

  // Cuts the prompt into as few chunks as the limit allows; {} if there are more than `most`, or no
  // cut fits. Each chunk is as large as fits: that is best, since a prefix never makes a chunk
  // cheaper.
  std::vector<int> Cut(const TimeLimit& limit, int most) const;

  // The number of these chunks; INT_MAX if more than `most`, or if no cut fits.
  int Count(double limit_us, int most) const;

  // The first chunk of the rest: whole pages, or all of it. 0 if not even a page fits.
  int Largest(int prefix_length, int left, double limit_us) const;

  // The distinct ones.
  const std::vector<StageCost>& stages() const { return stages_; }

 private:
  // Calls `take` with each chunk and returns their number; INT_MAX as in Count.
  template <typename Take>
  int Walk(const TimeLimit& limit, int most, Take take) const;
  int LargestOn(const StageCost& stage, int prefix_length, int left, double limit_us) const;

  const PromptShape prompt_;
  const int max_tokens_;
  std::vector<StageCost> stages_;
};

// Arithmetic that the rules share.

// The positive root of a x^2 + b x = rest, for a, b >= 0, not both zero; 0 if there is none. It
// uses the form that avoids cancellation when `a` is small.
inline double PositiveRoot(double a, double b, double rest) {
  if (rest <= 0) return 0;
  return 2 * rest / (b + std::sqrt(b * b + 4 * a * rest));
}

// Rounds down to whole units, limited to what an int holds.
inline int AlignDown(double tokens, int unit) {
  const double units = std::floor(tokens / unit);
  return units >= static_cast<double>(INT_MAX / unit) ? INT_MAX / unit * unit
                                                      : static_cast<int>(units) * unit;
}

}  // namespace baton

#endif  // COMMON_CHUNKING_CUTTER_H_
