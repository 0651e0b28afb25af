// Draws the next token from logits. A pure function of its arguments: no state, any thread.
#ifndef COMMON_ENGINE_SAMPLER_H_
#define COMMON_ENGINE_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/sampled_token.h"

namespace baton {

inline constexpr int kMaxTopLogprobs = 128;

struct SamplingParams {
  double temperature = 1;  // 0 is greedy: the most probable token, the lowest id among equals.
  int top_k = 0;           // Keep the k most probable tokens; 0 keeps all.
  double top_p = 1;        // Of those, the fewest whose probabilities sum to top_p. In (0, 1].
  double min_p = 0;        // Of those, the ones at least min_p times as probable as the best.
  // Until this many tokens exist, ids that would end the request are not drawn.
  int min_tokens = 0;
  std::vector<int32_t> stop_token_ids;
  std::vector<int32_t> eos_token_ids;
  bool ignore_eos = false;  // Eos ids are ordinary tokens.
  int top_logprobs = 0;     // How many of the most probable tokens to report.
};

// InvalidArgument that names the field (FieldOf in common/base/status.h).
absl::Status ValidateSamplingParams(const SamplingParams& params, int vocab_size);

// `logprob` and `top` of the drawn token are those of the model's own distribution: temperature 1,
// nothing filtered or masked; params.top_logprobs alternatives.
//
// `position` counts the tokens that the request has generated before this one. The draw is a
// function of (seed, position), so neither other requests nor the process that draws matter.
// `params` have passed ValidateSamplingParams. Internal when a logit is not finite or no token is
// left to draw: that request must fail, its batch needn't.
absl::StatusOr<SampledToken> Sample(std::span<const float> logits, const SamplingParams& params,
                                    uint64_t seed, int position);

// Whether drawing `token` ends the request.
bool EndsGeneration(const SamplingParams& params, int32_t token);

}  // namespace baton

#endif  // COMMON_ENGINE_SAMPLER_H_
