// What bytes and tokens stand for in the simulation. A page's KV is one number that says whose
// prompt, which page, which layers and how many tokens it holds, so a page of another request, a
// page that was reused too early, or one that never arrived is told apart at once.
#ifndef TESTS_SIM_CONTENT_H_
#define TESTS_SIM_CONTENT_H_

#include <algorithm>
#include <cstdint>

#include "common/base/random.h"
#include "common/types/sampled_token.h"

namespace baton::sim {

// KV of page `page` of a prompt: `tokens` of it are computed, for one layer.
inline uint64_t KvContent(uint64_t prompt_id, int page, int tokens, int layer) {
  return Mix64(prompt_id ^
               Mix64(static_cast<uint64_t>(page) << 40 ^ static_cast<uint64_t>(tokens) << 20 ^
                     static_cast<uint64_t>(layer)));
}

inline int TokensInPage(int prompt_tokens, int page, int page_size) {
  return std::min(page_size, prompt_tokens - page * page_size);
}

// The i-th token of the right answer. About one in forty is the stop id.
inline constexpr int32_t kStopToken = 2;
inline int32_t AnswerToken(uint64_t prompt_id, int index) {
  const uint64_t draw = Mix64(prompt_id * 31 + static_cast<uint64_t>(index));
  return draw % 40 == 0 ? kStopToken : static_cast<int32_t>(3 + draw % 997);
}

// One request in four wants to know of its prompt's tokens.
inline bool WantsPromptTokens(uint64_t prompt_id) { return prompt_id % 4 == 0; }

// The i-th token of the prompt as the last stage reports it.
inline SampledToken PromptToken(uint64_t prompt_id, int index) {
  const uint64_t draw = Mix64(prompt_id * 37 + static_cast<uint64_t>(index));
  return {static_cast<int32_t>(draw % 1000), -static_cast<float>(draw >> 50), {}};
}

}  // namespace baton::sim

#endif  // TESTS_SIM_CONTENT_H_
