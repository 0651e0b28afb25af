// How one request's tokens are chosen from logits. Plain values; see proto/baton/v1/common.proto
// for the same in the words of clients.
#ifndef COMMON_ENGINE_SAMPLING_SAMPLING_PARAMS_H_
#define COMMON_ENGINE_SAMPLING_SAMPLING_PARAMS_H_

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace baton {

struct SamplingParams {
  // Logits are changed in this order: bias, repetition, frequency, presence.
  std::vector<std::pair<int32_t, float>> logit_bias;  // Added; each token once.
  // Divides a positive logit, multiplies a negative one, of every token of prompt and continuation.
  double repetition_penalty = 1;  // In (0, 2].
  // Subtracted from the logits of the continuation's tokens, for each occurrence and once.
  double frequency_penalty = 0;  // In [-2, 2].
  double presence_penalty = 0;   // In [-2, 2].

  double temperature = 1;  // 0 is greedy: the most probable token, the lowest id among equals.
  int top_k = 0;           // Keep the k most probable tokens; 0 keeps all.
  double top_p = 1;        // Of those, the fewest whose probabilities sum to top_p. In (0, 1].
  double min_p = 0;        // Of those, the ones at least min_p times as probable as the best.

  // Until this many tokens exist, ids that would end the request are not drawn.
  int min_tokens = 0;
  std::vector<int32_t> stop_token_ids;
  std::vector<int32_t> eos_token_ids;
  bool ignore_eos = false;  // Eos ids are ordinary tokens.

  bool logprobs = false;  // Report the drawn token's log-probability.
  int top_logprobs = 0;   // And so many of the most probable tokens'; needs logprobs.

  // Whether drawing looks at tokens that came before, and whether at the prompt's.
  bool NeedsHistory() const {
    return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0;
  }
  bool NeedsPrompt() const { return repetition_penalty != 1; }
};

// InvalidArgument that names the field (FieldOf in common/base/status.h).
absl::Status ValidateSamplingParams(const SamplingParams& params, int vocab_size);

// Whether drawing `token` ends the request.
bool EndsGeneration(const SamplingParams& params, int32_t token);

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

// How the token after a sequence's last one is drawn.
struct Draw {
  const SamplingParams* params = nullptr;  // Have passed ValidateSamplingParams.
  uint64_t seed = 0;
  // Tokens that the request has generated before this one. The draw is a function of (seed,
  // position), so neither other requests nor the process that draws matter.
  int position = 0;
  // What penalties look at; null if params->NeedsHistory() is false. The executor's from Submit to
  // the step's end. Where position is positive the sequence's one token is the latest of the
  // continuation, and is added first; so every token is added once if every step draws.
  TokenHistory* history = nullptr;
  // The prompt, to be set in `history` before a request's first draw; empty if it is there or
  // params->NeedsPrompt() is false.
  std::span<const int32_t> prompt;
};

}  // namespace baton

#endif  // COMMON_ENGINE_SAMPLING_SAMPLING_PARAMS_H_
