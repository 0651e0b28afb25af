// Sampling as the workers do it: one place that says how v1::SamplingParams become a draw, so that
// the last prefill stage, which draws the first token, and decode, which draws the others, never
// differ, and a request that moves to another decode service gets the same text.
#ifndef SERVICES_WORKER_TOKEN_SAMPLER_H_
#define SERVICES_WORKER_TOKEN_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/sampler.h"
#include "common/types/sampled_token.h"
#include "proto/baton/v1/common.pb.h"

namespace baton::worker {

// Checked parameters of one request, ready to draw with. Immutable; any thread.
class TokenSampler {
 public:
  // Checks what a worker's boundary must: everything that the contract promises, since the router
  // is a peer like any other. The router has filled in seed and max_tokens. `eos_ids` are the
  // model's. INVALID_ARGUMENT names the field ("sampling.top_p").
  static absl::StatusOr<TokenSampler> Create(const v1::SamplingParams& sampling,
                                             const std::vector<int32_t>& eos_ids, int vocab_size);

  // Draws the token of index `generated` in the continuation: 0 is the first token, drawn by the
  // last prefill stage; decode goes on from 1. The draw depends on (logits, parameters, seed,
  // generated) alone. `logits` is [vocab]. An error concerns this request only.
  absl::StatusOr<SampledToken> Draw(std::span<const float> logits, int generated) const {
    return Sample(logits, params_, seed_, generated);
  }

  const SamplingParams& params() const { return params_; }
  int max_tokens() const { return max_tokens_; }

 private:
  TokenSampler() = default;
  SamplingParams params_;
  uint64_t seed_ = 0;
  int max_tokens_ = 1;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_TOKEN_SAMPLER_H_
