#include "common/engine/sampling/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/types/limits.h"

namespace baton {
namespace {

constexpr double kMaxPenalty = 2;

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

absl::Status ValidateId(const char* field, int32_t id, int vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return InvalidField(field,
                      absl::StrCat("token id ", id, " is outside the vocabulary of ", vocab_size));
}

absl::Status ValidateIds(const char* field, const std::vector<int32_t>& ids, int vocab_size) {
  for (const int32_t id : ids) BATON_RETURN_IF_ERROR(ValidateId(field, id, vocab_size));
  return absl::OkStatus();
}

absl::Status ValidateLogitBias(const SamplingParams& params, int vocab_size) {
  if (params.logit_bias.size() > kMaxLogitBiases) {
    return InvalidField(
        "logit_bias", absl::StrCat(params.logit_bias.size(), " tokens, at most ", kMaxLogitBiases));
  }
  std::vector<int32_t> ids;
  for (const auto& [id, bias] : params.logit_bias) {
    BATON_RETURN_IF_ERROR(ValidateId("logit_bias", id, vocab_size));
    if (!(std::fabs(bias) <= kMaxLogitBias)) {
      return InvalidField("logit_bias",
                          absl::StrCat("of token ", id, " must be in [-100, 100], is ", bias));
    }
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice == ids.end()) return absl::OkStatus();
  return InvalidField("logit_bias", absl::StrCat("names token ", *twice, " twice"));
}

// Written so that NaN fails, as all of the checks here.
absl::Status ValidatePenalty(const char* field, double penalty) {
  if (penalty >= -kMaxPenalty && penalty <= kMaxPenalty) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("must be in [-2, 2], is ", penalty));
}

absl::Status ValidateFilters(const SamplingParams& params) {
  if (!(params.temperature >= 0 && std::isfinite(params.temperature))) {
    return InvalidField("temperature",
                        absl::StrCat("must be finite and not negative, is ", params.temperature));
  }
  if (params.top_k < 0) {
    return InvalidField("top_k", absl::StrCat("must not be negative, is ", params.top_k));
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return InvalidField("top_p", absl::StrCat("must be in (0, 1], is ", params.top_p));
  }
  if (!(params.min_p >= 0 && params.min_p <= 1)) {
    return InvalidField("min_p", absl::StrCat("must be in [0, 1], is ", params.min_p));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSamplingParams(const SamplingParams& params, int vocab_size) {
  BATON_RETURN_IF_ERROR(ValidateFilters(params));
  if (!(params.repetition_penalty > 0 && params.repetition_penalty <= kMaxPenalty)) {
    return InvalidField("repetition_penalty",
                        absl::StrCat("must be in (0, 2], is ", params.repetition_penalty));
  }
  BATON_RETURN_IF_ERROR(ValidatePenalty("frequency_penalty", params.frequency_penalty));
  BATON_RETURN_IF_ERROR(ValidatePenalty("presence_penalty", params.presence_penalty));
  BATON_RETURN_IF_ERROR(ValidateLogitBias(params, vocab_size));
  if (params.min_tokens < 0) {
    return InvalidField("min_tokens", absl::StrCat("must not be negative, is ", params.min_tokens));
  }
  if (params.top_logprobs < 0 || params.top_logprobs > kMaxTopLogprobs) {
    return InvalidField("top_logprobs", absl::StrCat("must be between 0 and ", kMaxTopLogprobs,
                                                     ", is ", params.top_logprobs));
  }
  BATON_RETURN_IF_ERROR(ValidateIds("eos_token_ids", params.eos_token_ids, vocab_size));
  return ValidateIds("stop_token_ids", params.stop_token_ids, vocab_size);
}

bool EndsGeneration(const SamplingParams& params, int32_t token) {
  return Contains(params.stop_token_ids, token) ||
         (!params.ignore_eos && Contains(params.eos_token_ids, token));
}

void TokenHistory::SetPrompt(std::span<const int32_t> tokens) {
  prompt_.assign(tokens.begin(), tokens.end());
  std::sort(prompt_.begin(), prompt_.end());
  prompt_.erase(std::unique(prompt_.begin(), prompt_.end()), prompt_.end());
  prompt_.shrink_to_fit();
}

absl::Status TokenHistory::Begin(const SamplingParams& params) {
  BATON_ASSIGN_OR_RETURN(rules_, params.constraint->Await());
  constraint_ = rules_->text;
  if (constraint_ != nullptr) text_ = constraint_->Begin();
  if (params.reasoning_budget.has_value() && rules_->closing != nullptr) {
    const grammar::Source& source = rules_->source;
    reasoning_budget_ = *params.reasoning_budget;
    reasoning_.emplace(source.reasoning_begin, source.reasoning_end, source.in_reasoning);
    EndReasoning();
  }
  return absl::OkStatus();
}

// If it is time, and never within a character.
void TokenHistory::EndReasoning() {
  if (reasoning_->may_come()) {
    if (!reasoning_->inside() || !reasoning_->at_character() ||
        reasoning_->tokens() < reasoning_budget_) {
      return;
    }
    constraint_ = rules_->closing;
    text_ = constraint_->Begin();
  }
  reasoning_.reset();
}

void TokenHistory::Follow(const SamplingParams& params, std::optional<int32_t> token) {
  if (rules_ == nullptr && text_status_.ok()) text_status_ = Begin(params);
  if (!token.has_value() || !text_status_.ok() || text_ended_) return;
  const bool ends = EndsGeneration(params, *token) || Contains(params.eos_token_ids, *token);
  if (constraint_ != nullptr) {
    const absl::Status status = constraint_->Append(text_, *token);
    if (!status.ok() && ends && constraint_->CanEnd(text_)) {
      text_ended_ = true;
      return;
    }
    text_status_ = status;
    // Behind the mark that was forced, a text of no kind is free again.
    const bool free = rules_->text == nullptr && status.ok() && constraint_->CanEnd(text_);
    if (free) constraint_ = nullptr;
  }
  if (!reasoning_.has_value() || !text_status_.ok()) return;
  reasoning_->Append(rules_->vocabulary->BytesOf(*token));
  EndReasoning();
}

absl::StatusOr<std::shared_ptr<const grammar::TokenMask>> TokenHistory::NextMask() {
  BATON_RETURN_IF_ERROR(text_status_);
  if (constraint_ == nullptr) return nullptr;
  if (!text_ended_) return constraint_->MaskOf(text_);
  auto ended = std::make_shared<grammar::TokenMask>();
  ended->ends = true;
  return ended;
}

bool TokenHistory::InPrompt(int32_t token) const {
  return std::binary_search(prompt_.begin(), prompt_.end(), token);
}

}  // namespace baton
