// Draws the next token from logits, and tells log-probabilities.
#ifndef COMMON_ENGINE_SAMPLING_SAMPLER_H_
#define COMMON_ENGINE_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/kernels/kernels.h"
#include "common/engine/sampling/sampling_params.h"
#include "common/engine/sampling/token_weights.h"
#include "common/types/sampled_token.h"

namespace baton {

// The results are functions of the arguments alone; what an object holds is scratch, so that a step
// allocates next to nothing: about 22 bytes for each token of the vocabulary. One thread at a time.
//
// Weights are float exponentials in fixed point (token_weights.h): which token a draw gives can
// differ between instruction sets, as logits do, but not between two runs on one machine type.
class Sampler {
 public:
  explicit Sampler(int vocab_size, const kernels::KernelTable& kernels = *kernels::FindKernels(""));

  // What a draw is made from. `logits` is [vocab]; `history` may be null if the parameters need
  // none. `position` counts the tokens that the request has generated before this one; the draw is
  // a function of (seed, position), so neither other requests nor the process that draws matter.
  // `params` have passed ValidateSamplingParams.
  struct Row {
    std::span<const float> logits;
    const SamplingParams* params = nullptr;
    uint64_t seed = 0;
    int position = 0;
    const TokenHistory* history = nullptr;
  };

  // `logprob` and `top` of the drawn token, if asked for, are those of the model's own
  // distribution: temperature 1, nothing penalised, filtered or masked. Internal when a logit is
  // not finite or no token is left to draw: that request must fail, its batch needn't.
  absl::StatusOr<SampledToken> Sample(const Row& row);

  // The log-probability of `token` and of the `top` most probable ones in the model's own
  // distribution. Internal when a logit is not finite.
  absl::StatusOr<SampledToken> Report(std::span<const float> logits, int32_t token, int top);

 private:
  // Finds the largest logit of each block and of all; false if one is not finite.
  bool Scan(std::span<const float> logits, float& max);
  // The largest logit; Internal as above.
  absl::StatusOr<float> FindMax(std::span<const float> logits);
  // The first token whose logit is `max`.
  int32_t FirstOf(std::span<const float> logits, float max) const;
  std::span<const float> Adjust(const Row& row);
  int32_t Draw(std::span<const float> logits, float max, const Row& row);
  void AddLogprobs(std::span<const float> logits, float max, int top, SampledToken& token);

  const kernels::KernelTable& kernels_;
  TokenWeights weights_;
  std::vector<float> block_max_;  // Of kBlock logits each.
  std::vector<float> adjusted_;   // Logits with bias, penalties and masks.
};

}  // namespace baton

#endif  // COMMON_ENGINE_SAMPLING_SAMPLER_H_
