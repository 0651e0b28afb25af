// The only place where v1::SamplingParams become a draw. The last prefill stage draws the first
// token and decode draws the others, both through this class, so a request that moves to another
// decode service gets the same text.
#ifndef COMMON_ENGINE_SAMPLING_TOKEN_SAMPLER_H_
#define COMMON_ENGINE_SAMPLING_TOKEN_SAMPLER_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/sampling/constraints.h"
#include "common/engine/sampling/sampling_params.h"
#include "common/types/limits.h"
#include "common/types/sampled_token.h"
#include "common/types/stop_rule.h"
#include "proto/baton/v1/common.pb.h"

namespace baton {

// The checked parameters of one request. Immutable; any thread.
class TokenSampler {
 public:
  // Checks everything that the contract promises: the router is a peer, and peers are not trusted.
  // The router must have set seed and max_tokens. `eos_ids` are the model's. INVALID_ARGUMENT names
  // the field ("sampling.top_p"). `constraints` compiles what the text must be; without it, which
  // is refused.
  static absl::StatusOr<TokenSampler> Create(const v1::SamplingParams& sampling,
                                             const std::vector<int32_t>& eos_ids, int vocab_size,
                                             Constraints* constraints = nullptr);
  // The same on a process that draws nothing: it needs no constraint.
  static absl::StatusOr<TokenSampler> CreateSilent(v1::SamplingParams sampling,
                                                   const std::vector<int32_t>& eos_ids,
                                                   int vocab_size);

  // The draw of the token behind `generated` others of this attempt: the last prefill stage draws
  // 0, decode draws from 1 on. `history` holds the prompt and the continuation as far as params()
  // need them; null if they need none. This object must outlive the step.
  Draw DrawOf(int generated, TokenHistory* history) const {
    return {&params_, seed_, drawn_tokens_ + generated, history, {}, {}};
  }

  const SamplingParams& params() const { return params_; }
  // How many of the last tokens that the request reads an earlier attempt has drawn: they belong
  // to the continuation.
  int drawn_tokens() const { return drawn_tokens_; }
  // Counts the tokens that this attempt draws.
  StopRule stop_rule() const {
    return {max_tokens_ - drawn_tokens_, std::max(0, params_.min_tokens - drawn_tokens_),
            params_.ignore_eos, params_.eos_token_ids, params_.stop_token_ids};
  }
  // Whether the prompt's log-probabilities are wanted, and with how many alternatives each.
  bool prompt_logprobs() const { return prompt_logprobs_; }
  int prompt_top_logprobs() const { return prompt_top_logprobs_; }
  // INVALID_ARGUMENT if a prompt of `prompt_tokens` has more log-probabilities than
  // kMaxPromptLogprobs.
  absl::Status CheckPromptLogprobs(int prompt_tokens) const;
  // INVALID_ARGUMENT if all of what is read, `read_tokens`, was drawn before.
  absl::Status CheckDrawn(int read_tokens) const;

 private:
  TokenSampler() = default;
  SamplingParams params_;
  uint64_t seed_ = 0;
  int max_tokens_ = 1;
  int drawn_tokens_ = 0;
  bool prompt_logprobs_ = false;
  int prompt_top_logprobs_ = 0;
};

}  // namespace baton

#endif  // COMMON_ENGINE_SAMPLING_TOKEN_SAMPLER_H_
