// What a timed model computes instead of numbers: for every token a word that depends on all tokens
// before it. The word is stored in the KV of every layer and sent with the activations, so lost or
// stale data, or another prompt's, is detected. The next token depends on the words alone.
#ifndef COMMON_ENGINE_TIMED_TIMED_CONTENT_H_
#define COMMON_ENGINE_TIMED_TIMED_CONTENT_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/random.h"

namespace baton {

// The word before the first token.
inline constexpr uint64_t kTimedRoot = 0x62a70;

constexpr uint64_t TimedWord(uint64_t before, int32_t token, int position) {
  const uint64_t place =
      (uint64_t{static_cast<uint32_t>(token)} << 32) | static_cast<uint32_t>(position);
  return Mix64(before ^ Mix64(place));
}

// Words at these intervals are read again for every token: each page of 64 tokens has one, and a
// context of 128K some two thousand.
inline constexpr int kTimedMilestone = 64;

constexpr uint64_t AddMilestone(uint64_t sum, uint64_t word, int position) {
  return sum + Mix64(word ^ static_cast<uint32_t>(position));
}

// The token after one whose word is `word`; never one that ends a generation. `milestones`: the sum
// of AddMilestone over the positions before it.
inline int32_t NextTimedToken(uint64_t word, uint64_t milestones, int vocab_size,
                              std::span<const int32_t> eos) {
  uint64_t drawn = Mix64(word + milestones);
  for (int i = 0; i < 64; ++i, drawn = Mix64(drawn)) {
    const auto token = static_cast<int32_t>(drawn % static_cast<uint64_t>(vocab_size));
    if (std::find(eos.begin(), eos.end(), token) == eos.end()) return token;
  }
  return 0;
}

// The expected continuation, computed from the prompt alone, for tests.
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

#endif  // COMMON_ENGINE_TIMED_TIMED_CONTENT_H_
