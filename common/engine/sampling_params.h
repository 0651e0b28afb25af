// How one request's tokens are chosen from logits. Plain values; see proto/baton/v1/common.proto
// for the same in the words of clients.
#ifndef COMMON_ENGINE_SAMPLING_PARAMS_H_
#define COMMON_ENGINE_SAMPLING_PARAMS_H_

#include <cstdint>
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

}  // namespace baton

#endif  // COMMON_ENGINE_SAMPLING_PARAMS_H_
