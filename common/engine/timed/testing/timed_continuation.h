// What a timed stage model generates, for tests.
#ifndef COMMON_ENGINE_TIMED_TESTING_TIMED_CONTINUATION_H_
#define COMMON_ENGINE_TIMED_TESTING_TIMED_CONTINUATION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/engine/timed/timed_stage_model.h"

namespace baton {

// The expected continuation, computed from the prompt alone.
inline std::vector<int32_t> TimedContinuation(std::vector<int32_t> tokens, int count,
                                              int vocab_size, std::span<const int32_t> eos) {
  std::vector<int32_t> answer;
  uint64_t word = kTimedRoot;
  uint64_t milestones = 0;
  for (size_t i = 0; i < tokens.size() && static_cast<int>(answer.size()) < count; ++i) {
    const auto position = static_cast<int>(i);
    if (position > 0 && position % kTimedMilestone == 0) {
      milestones = AddMilestone(milestones, word, position - 1);
    }
    word = TimedWord(word, tokens[i], position);
    if (i + 1 < tokens.size()) continue;
    answer.push_back(NextTimedToken(word, milestones, vocab_size, eos));
    tokens.push_back(answer.back());
  }
  return answer;
}

}  // namespace baton

#endif  // COMMON_ENGINE_TIMED_TESTING_TIMED_CONTINUATION_H_
