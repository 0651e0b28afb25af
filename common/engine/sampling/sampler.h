// Draws the next token from logits, and computes log-probabilities.
#ifndef COMMON_ENGINE_SAMPLING_SAMPLER_H_
#define COMMON_ENGINE_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/kernels/kernels.h"
#include "common/engine/sampling/sampling_params.h"
#include "common/engine/sampling/token_weights.h"
#include "common/types/sampled_token.h"

namespace baton {

// The results are functions of the arguments alone. The object only holds scratch memory, about 22
// bytes for each token of the vocabulary, so that a step allocates almost nothing. One thread at a
// time.
//
// Weights are float exponentials in fixed point (token_weights.h). So the token of a draw can
// differ between instruction sets, as logits do, but not between two runs on one machine type.
class Sampler {
 public:
  explicit Sampler(int vocab_size, const kernels::KernelTable& kernels = *kernels::FindKernels(""));

  // The input of a draw. `logits` is [vocab]. `params` are within their ranges.
  // `history` may be null if they need none. `position` is the number of tokens that the request
  // has generated before this one.
  struct Row {
    std::span<const float> logits;
    const SamplingParams* params = nullptr;
    uint64_t seed = 0;
    int position = 0;
    TokenHistory* history = nullptr;
  };

  // The draw of Sample, if it takes the row's logits as they are and tells nothing else of them.
  static std::optional<RowDraw> RowDrawOf(const SamplingParams& params, uint64_t seed,
                                          int position);

  // `logprob` and `top` of the result, if asked for, are those of the model's own distribution:
  // temperature 1, without penalties, filters or masks. Internal if a logit is not finite or no
  // token is left to draw. The error fails this request, not its batch.
  absl::StatusOr<SampledToken> Sample(const Row& row);

  // The log-probability of `token` and of the `top` most probable ones in the model's own
  // distribution. Internal when a logit is not finite.
  absl::StatusOr<SampledToken> Report(std::span<const float> logits, int32_t token, int top);

 private:
  // Finds the largest logit of each block and of all; false if a logit is not finite.
  bool Scan(std::span<const float> logits, float& max);
  // The largest logit; Internal if a logit is not finite.
  absl::StatusOr<float> FindMax(std::span<const float> logits);
  // The first token whose logit is `max`.
  int32_t FirstOf(std::span<const float> logits, float max) const;
  absl::StatusOr<std::span<const float>> Adjust(const Row& row);
  // Leaves what the text may go on with. The text's end is what ends it: end-of-sequence tokens
  // and ids to stop at that are no text.
  absl::Status Constrain(const Row& row);
  void Forbid(int32_t token);
  void ForbidEnds(const SamplingParams& params);
  int32_t Draw(std::span<const float> logits, float max, const Row& row);
  void AddLogprobs(std::span<const float> logits, float max, int top, SampledToken& token);

  const kernels::KernelTable& kernels_;
  TokenWeights weights_;
  std::vector<float> block_max_;  // The largest of each kBlock logits.
  std::vector<float> adjusted_;   // Logits with bias, penalties and masks.
};

}  // namespace baton

#endif  // COMMON_ENGINE_SAMPLING_SAMPLER_H_
