#include "common/engine/sampling/sampling_params.h"

#include <algorithm>

#include "common/base/status.h"

namespace baton {
namespace {

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

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
