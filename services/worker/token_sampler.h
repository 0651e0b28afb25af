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
#include "common/engine/executor.h"
#include "common/types/limits.h"
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

  // How the token of index `generated` in the continuation is drawn: 0 is the first token, drawn by
  // the last prefill stage; decode goes on from 1. `history` has what was generated before and the
  // prompt, as far as params() need them; null if they need nothing. This object must outlive the
  // step.
  Draw DrawOf(int generated, TokenHistory* history) const {
    return {&params_, seed_, generated, history, {}};
  }

  const SamplingParams& params() const { return params_; }
  int max_tokens() const { return max_tokens_; }
  // The prompt's log-probabilities are wanted, with so many alternatives each.
  bool prompt_logprobs() const { return prompt_logprobs_; }
  int prompt_top_logprobs() const { return prompt_top_logprobs_; }
  // INVALID_ARGUMENT if a prompt of that length has more of them than kMaxPromptLogprobs.
  absl::Status CheckPromptLogprobs(int prompt_tokens) const;

 private:
  TokenSampler() = default;
  SamplingParams params_;
  uint64_t seed_ = 0;
  int max_tokens_ = 1;
  bool prompt_logprobs_ = false;
  int prompt_top_logprobs_ = 0;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_TOKEN_SAMPLER_H_
