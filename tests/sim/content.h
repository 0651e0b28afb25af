// A toy transformer in which one number stands for a vector, small enough to run for every token of
// every simulated request and honest enough that nothing can be faked: the KV of a slot follows
// from the tokens up to its position, what a layer passes on follows from every slot that it has
// read, and the next token from what the last layer passes on. A wrong page, layer, position, order
// or draw anywhere gives another token, and the checks say so long before.
//
//   x(0, p)     = Embed(token p, p)
//   kv(l, p)    = x(l, p)                                    what is stored
//   x(l + 1, p) = NextLayer(x(l, p), sum over q <= p of weight(q) * kv(l, q))    what is read
//   token p + 1 = DrawToken(x(layers, p), ...)
//
// The sum is linear in the slots, so that a whole page can be read as one number (sim_memory.h).
#ifndef TESTS_SIM_CONTENT_H_
#define TESTS_SIM_CONTENT_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/random.h"
#include "common/types/sampled_token.h"

namespace baton::sim {

inline constexpr int32_t kStopToken = 2;        // The model's.
inline constexpr int32_t kClientStopToken = 3;  // For requests that have a stop token.
inline constexpr int kVocabulary = 1000;
inline constexpr int kMaxPageSize = 64;

inline bool IsInVocabulary(int32_t token) { return 0 <= token && token < kVocabulary; }

// What a request reads that goes on elsewhere is another prompt: its own, and `drawn` tokens of its
// answer. Its draws go on where that answer stands.
inline constexpr int kDrawnShift = 48;
inline uint64_t NewPromptId(Random& random) { return random.Next() >> (64 - kDrawnShift); }
inline uint64_t ResumedId(uint64_t prompt_id, int drawn) {
  return prompt_id | static_cast<uint64_t>(drawn) << kDrawnShift;
}
inline int DrawnOf(uint64_t prompt_id) { return static_cast<int>(prompt_id >> kDrawnShift); }
inline uint64_t FirstId(uint64_t prompt_id) {
  return prompt_id & ((uint64_t{1} << kDrawnShift) - 1);
}

// The token at `position` of a first prompt. From a larger vocabulary than answers are drawn from:
// no two prompts have a token in common.
inline int64_t PromptTokenId(uint64_t prompt_id, int position) {
  return static_cast<int64_t>(Mix64(prompt_id ^ Mix64(static_cast<uint64_t>(position))) >> 1);
}

inline uint64_t Embed(int64_t token, int position) {
  return Mix64(static_cast<uint64_t>(token) ^ static_cast<uint64_t>(position) << 44);
}

inline constexpr std::array<uint64_t, kMaxPageSize> kTokenWeights = [] {
  std::array<uint64_t, kMaxPageSize> weights{};
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = Mix64(i + 1) | 1;
  return weights;
}();
// Weight of a page by its index in the sequence's page table.
inline uint64_t PageWeight(int index) { return Mix64(~static_cast<uint64_t>(index)) | 1; }

inline uint64_t NextLayer(uint64_t x, uint64_t attended) { return Mix64(x + attended); }

// Draw number `draw` of a request. About one in forty is the stop id, another one the client's, and
// two are the vocabulary's ends.
inline SampledToken DrawToken(uint64_t x, uint64_t prompt_id, int draw) {
  draw += DrawnOf(prompt_id);
  prompt_id = FirstId(prompt_id);
  const uint64_t value = Mix64(x ^ Mix64(prompt_id + static_cast<uint64_t>(draw)));
  SampledToken token;
  token.token = value % 40 == 0   ? kStopToken
                : value % 40 == 1 ? kClientStopToken
                : value % 40 == 2 ? 0
                : value % 40 == 3 ? kVocabulary - 1
                                  : static_cast<int32_t>(4 + value / 40 % (kVocabulary - 4));
  token.logprob = -static_cast<float>(value >> 50);
  if (prompt_id % 3 == 0) {
    token.top = {{token.token, token.logprob}, {1, token.logprob - 1}, {0, token.logprob - 2}};
    token.top.resize(1 + prompt_id / 3 % 3);
  }
  return token;
}

// One request in four wants to know of its prompt's tokens, before its first one.
inline bool WantsPromptTokens(uint64_t prompt_id) {
  return prompt_id % 4 == 0 && DrawnOf(prompt_id) == 0;
}

// What the last stage reports of the token at `position`, given what the last layer has made of the
// one before it.
inline SampledToken TellPromptToken(uint64_t prompt_id, int position, uint64_t x_before) {
  return {static_cast<int32_t>(PromptTokenId(prompt_id, position) % kVocabulary),
          -static_cast<float>(x_before >> 50),
          {}};
}

// When a request wants to stop, beside max_tokens.
struct Stops {
  int min_tokens = 0;
  bool ignore_eos = false;
  bool client_stop = false;
};
inline Stops StopsOf(uint64_t prompt_id) {
  const uint64_t draw = Mix64(FirstId(prompt_id) ^ 0x5709);
  Stops stops;
  if (draw % 4 == 0) stops.min_tokens = static_cast<int>(draw / 4 % 12);
  stops.min_tokens = std::max(0, stops.min_tokens - DrawnOf(prompt_id));
  stops.ignore_eos = draw / 64 % 8 == 0;
  stops.client_stop = draw / 512 % 2 == 0;
  return stops;
}

}  // namespace baton::sim

#endif  // TESTS_SIM_CONTENT_H_
