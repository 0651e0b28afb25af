// The tokens of one request that penalties look at.
#ifndef COMMON_ENGINE_TOKEN_HISTORY_H_
#define COMMON_ENGINE_TOKEN_HISTORY_H_

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace baton {

// Owned by whoever draws a request's tokens; one thread.
class TokenHistory {
 public:
  // The prompt's tokens, in any order; only repetition_penalty looks at them.
  void SetPrompt(std::span<const int32_t> tokens);
  // The next token of the continuation.
  void Add(int32_t token) { ++counts_[token]; }

  // Distinct tokens of the prompt, ascending.
  const std::vector<int32_t>& prompt() const { return prompt_; }
  bool InPrompt(int32_t token) const;
  // How often each token is in the continuation.
  const std::unordered_map<int32_t, int>& counts() const { return counts_; }

 private:
  std::vector<int32_t> prompt_;
  std::unordered_map<int32_t, int> counts_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_TOKEN_HISTORY_H_
