#include "common/engine/sampling/token_sampler.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/engine/sampling/check_sampling.h"

namespace baton {
namespace {

// These are promises of proto/baton/v1/common.proto.
absl::Status Invalid(const char* field, const std::string& message) {
  return InvalidField(absl::StrCat("sampling.", field), message);
}

absl::Status Check(const v1::SamplingParams& sampling, const std::vector<int32_t>& eos_ids,
                   int vocab_size) {
  BATON_RETURN_IF_ERROR(
      CheckSampling(sampling, {.vocab_size = vocab_size},
                    [](std::string_view field) { return Concat("sampling.", field); }));
  if (!sampling.has_seed()) return Invalid("seed", "must be set by the router");
  if (!sampling.has_max_tokens() || sampling.max_tokens() < 1) {
    return Invalid("max_tokens", absl::StrCat("must be positive, is ", sampling.max_tokens()));
  }
  if (sampling.drawn_tokens() < 0 || sampling.drawn_tokens() >= sampling.max_tokens()) {
    return Invalid("drawn_tokens",
                   absl::StrCat("must be from 0 to below max_tokens = ", sampling.max_tokens(),
                                ", is ", sampling.drawn_tokens()));
  }
  for (const int32_t id : eos_ids) {
    if (id < 0 || id >= vocab_size) {
      return Invalid("eos_token_ids",
                     absl::StrCat("token id ", id, " is outside the vocabulary of ", vocab_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenSampler> TokenSampler::Create(const v1::SamplingParams& sampling,
                                                  const std::vector<int32_t>& eos_ids,
                                                  int vocab_size, Constraints* constraints) {
  BATON_RETURN_IF_ERROR(Check(sampling, eos_ids, vocab_size));
  TokenSampler sampler;
  sampler.seed_ = sampling.seed();
  sampler.max_tokens_ = sampling.max_tokens();
  sampler.drawn_tokens_ = sampling.drawn_tokens();
  SamplingParams& params = sampler.params_;
  if (sampling.has_temperature()) params.temperature = sampling.temperature();
  if (sampling.has_top_k()) params.top_k = std::max(0, sampling.top_k());
  if (sampling.has_top_p()) params.top_p = sampling.top_p();
  if (sampling.has_min_p()) params.min_p = sampling.min_p();
  params.min_tokens = sampling.min_tokens();
  params.stop_token_ids.assign(sampling.stop_token_ids().begin(), sampling.stop_token_ids().end());
  params.eos_token_ids = eos_ids;
  params.ignore_eos = sampling.ignore_eos();
  params.logprobs = sampling.logprobs();
  params.top_logprobs = sampling.logprobs() ? sampling.top_logprobs() : 0;
  sampler.prompt_logprobs_ = sampling.prompt_logprobs();
  sampler.prompt_top_logprobs_ = sampling.prompt_logprobs() ? sampling.top_logprobs() : 0;
  params.presence_penalty = sampling.presence_penalty();
  params.frequency_penalty = sampling.frequency_penalty();
  if (sampling.has_repetition_penalty()) params.repetition_penalty = sampling.repetition_penalty();
  for (const v1::LogitBias& bias : sampling.logit_bias()) {
    params.logit_bias.emplace_back(bias.token_id(), bias.bias());
  }
  if (!sampling.has_structure()) return sampler;
  if (constraints == nullptr) {
    return Invalid("structure", "this worker does not know the vocabulary's texts");
  }
  const bool must_end = sampling.structure().kind_case() != v1::TextStructure::KIND_NOT_SET;
  if (must_end && eos_ids.empty() && params.stop_token_ids.empty()) {
    return Invalid("structure", "the model names no token that ends a text");
  }
  absl::StatusOr<std::shared_ptr<const PendingConstraint>> constraint =
      constraints->Find(sampling.structure());
  if (absl::IsInvalidArgument(constraint.status())) {
    return Invalid("structure", std::string(constraint.status().message()));
  }
  BATON_RETURN_IF_ERROR(constraint.status());
  params.constraint = *std::move(constraint);
  if (sampling.structure().has_reasoning_budget()) {
    params.reasoning_budget = sampling.structure().reasoning_budget();
  }
  return sampler;
}

absl::StatusOr<TokenSampler> TokenSampler::CreateSilent(v1::SamplingParams sampling,
                                                        const std::vector<int32_t>& eos_ids,
                                                        int vocab_size) {
  sampling.clear_structure();
  return Create(sampling, eos_ids, vocab_size);
}

absl::Status TokenSampler::CheckPromptLogprobs(int prompt_tokens) const {
  const int64_t wanted = int64_t{prompt_tokens} * (1 + prompt_top_logprobs_);
  if (!prompt_logprobs_ || wanted <= kMaxPromptLogprobs) return absl::OkStatus();
  return Invalid(
      "prompt_logprobs",
      absl::StrCat(prompt_tokens, " tokens with ", prompt_top_logprobs_, " alternatives each are ",
                   wanted, " log-probabilities, at most ", kMaxPromptLogprobs, " are told"));
}

absl::Status TokenSampler::CheckDrawn(int read_tokens) const {
  if (drawn_tokens_ < read_tokens) return absl::OkStatus();
  return Invalid("drawn_tokens", absl::StrCat(drawn_tokens_, " of ", read_tokens,
                                              " tokens leave none of the prompt"));
}

}  // namespace baton
