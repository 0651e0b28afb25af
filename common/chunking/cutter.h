// Cuts a prompt into chunks by how long each may take.
#ifndef COMMON_CHUNKING_CUTTER_H_
#define COMMON_CHUNKING_CUTTER_H_

#include <climits>
#include <vector>

#include "common/chunking/chunk_plan.h"
#include "common/chunking/stage_cost.h"

namespace baton {

// The longest that a chunk may take any stage: the same along the whole prompt, or evenly more, or
// less, from its first token to its last.
struct TimeLimit {
  double us = 0;     // Halfway.
  double slope = 0;  // What it grows by from end to end, over `us`: above -2 and below 2.
};

class Cutter {
 public:
  // `stages` is not empty.
  Cutter(const PromptShape& prompt, const std::vector<StageCost>& stages, int max_tokens);

  // What the slowest stage takes.
  double Micros(int prefix_length, int tokens) const;

  // The prompt in as few chunks as the limit allows; {} where that is more than `most`, or none.
  // Taking as much as fits each time is best, for a prefix makes no chunk cheaper.
  std::vector<int> Cut(const TimeLimit& limit, int most) const;

  // How many those are; INT_MAX: more, or none.
  int Count(double limit_us, int most) const;

  // The first chunk of what is left: in whole pages, or all of it. 0: not even a page fits.
  int Largest(int prefix_length, int left, double limit_us) const;

  // Those that differ, each once.
  const std::vector<StageCost>& stages() const { return stages_; }

 private:
  // The number of chunks, which are handed to `take` one by one; INT_MAX as of Count.
  template <typename Take>
  int Walk(const TimeLimit& limit, int most, Take take) const;
  int LargestOn(const StageCost& stage, int prefix_length, int left, double limit_us) const;

  const PromptShape prompt_;
  const int max_tokens_;
  std::vector<StageCost> stages_;
};

}  // namespace baton

#endif  // COMMON_CHUNKING_CUTTER_H_
