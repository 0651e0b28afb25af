#include "services/router/session.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/tokenizer/stream/text_assembler.h"
#include "common/tokenizer/words/utf8.h"
#include "services/router/core/context_overflow.h"

namespace baton::router {

Session::Session(SessionRequest request, TextAssembler assembler, const Tokenizer& tokenizer,
                 RouterMetrics& metrics)
    : request_(std::move(request)),
      prompt_tokens_(static_cast<int>(request_.prompt_ids.size())),
      assembler_(std::move(assembler)),
      tokenizer_(tokenizer),
      metrics_(metrics) {}

void Session::BeginAttempt(uint64_t attempt_id, int64_t now_us) {
  if (paired_us_ == 0) {
    paired_us_ = now_us;
    metrics_.CountAdmitted(prompt_tokens_, now_us - request_.arrival_us);
  }
  attempt_id_ = attempt_id;
  attempt_us_ = now_us;
  reserve_us_ = 0;
  computed_tokens_ = 0;
}

// Heartbeats say it again and again, and the last ones may come behind the first token.
void Session::OnPromptProgress(int computed_tokens) {
  if (computed_tokens <= computed_tokens_ || computed_tokens > prompt_tokens_) return;
  if (first_token_us_ != 0) return;
  computed_tokens_ = computed_tokens;
  request_.sink->OnPromptProgress({computed_tokens, prompt_tokens_});
}

TokenPiece Session::PieceOf(const SampledToken& token, int64_t text_offset) const {
  TokenPiece piece;
  piece.id = token.token;
  piece.text_offset = text_offset;
  piece.bytes = std::string(tokenizer_.TokenBytes(token.token));
  piece.logprob = token.logprob;
  for (const TokenLogprob& top : token.top) {
    piece.top.push_back({top.token, std::string(tokenizer_.TokenBytes(top.token)), top.logprob});
  }
  return piece;
}

void Session::DeliverPrompt(const std::vector<SampledToken>& tokens) {
  // A prompt's own special tokens are part of it, whatever the answer shows.
  IncrementalDetokenizer detokenizer(&tokenizer_, /*skip_special=*/false);
  int64_t characters = 0;
  std::vector<TokenPiece> pieces;
  pieces.reserve(tokens.size() + 1);
  const auto add = [&](const SampledToken& token) {
    pieces.push_back(PieceOf(token, characters));
    characters += static_cast<int64_t>(CountCharacters(detokenizer.Append(token.token)));
  };
  add({.token = request_.prompt_ids.front()});
  pieces.front().logprob.reset();
  for (const SampledToken& token : tokens) add(token);
  request_.sink->OnPromptTokens(std::move(pieces));
}

bool Session::DeliverToken(const SampledToken& token, int64_t now_us) {
  if (first_token_us_ == 0) {
    first_token_us_ = now_us;
    metrics_.CountFirstToken(now_us - request_.arrival_us);
    request_.trace.OnFirstToken(now_us);
  } else {
    metrics_.CountNextToken(now_us - last_token_us_);
  }
  last_token_us_ = now_us;
  request_.prompt_ids.push_back(token.token);
  // After a stop string others may come that waited for the prompt with it.
  if (request_.prompt_only || matched_stop_.has_value()) return false;
  ++completion_tokens_;
  const int64_t offset = assembler_.characters();
  TextAssembler::Piece text = assembler_.Append(token.token);
  if (request_.sampling.logprobs()) {
    held_.push_back(PieceOf(token, offset));
  } else {
    held_.push_back({.id = token.token, .text_offset = offset});
  }
  matched_stop_ = text.stop;
  Send(std::move(text), /*last=*/request_.sampling.stop().empty());
  return matched_stop_.has_value();
}

void Session::Send(TextAssembler::Piece piece, bool last) {
  TextPiece out;
  out.text = std::move(piece.text);
  if (piece.stop.has_value() && request_.text.include_stop) out.text += *piece.stop;
  sent_characters_ += static_cast<int64_t>(CountCharacters(out.text));
  if (last) {
    out.tokens = std::exchange(held_, {});
  } else {
    const auto kept = std::find_if(held_.begin(), held_.end(), [this](const TokenPiece& token) {
      return token.text_offset >= sent_characters_;
    });
    out.tokens.assign(std::make_move_iterator(held_.begin()), std::make_move_iterator(kept));
    held_.erase(held_.begin(), kept);
  }
  if (!out.text.empty() || !out.tokens.empty()) request_.sink->OnTokens(std::move(out));
}

Outcome Session::MakeOutcome(const FinishCall& finish, int64_t now_us) {
  Outcome outcome;
  outcome.reason = *finish.outcome;
  if (request_.prompt_only && outcome.reason == FinishReason::kStop) {
    outcome.reason = FinishReason::kLength;  // The token that ended it is not told.
  }
  if (!matched_stop_.has_value()) {
    TextAssembler::Piece rest = assembler_.Finish();
    matched_stop_ = rest.stop;
    if (held_.empty() && !rest.stop.has_value()) {
      outcome.text = std::move(rest.text);
    } else {
      Send(std::move(rest), /*last=*/!matched_stop_.has_value());
    }
  }
  if (matched_stop_.has_value() && outcome.reason == FinishReason::kLength) {
    outcome.reason = FinishReason::kStop;
  }
  outcome.matched_stop = matched_stop_.value_or("");
  outcome.usage.set_prompt_tokens(prompt_tokens_);
  outcome.usage.set_completion_tokens(completion_tokens_);
  outcome.usage.set_cached_tokens(CachedTokens());
  v1::RequestTiming& timing = outcome.timing;
  timing.set_queue_us((paired_us_ == 0 ? now_us : paired_us_) - request_.arrival_us);
  if (first_token_us_ > 0) timing.set_ttft_us(first_token_us_ - request_.arrival_us);
  timing.set_e2e_us(now_us - request_.arrival_us);
  timing.set_reserve_us(reserve_us_);
  *timing.mutable_prefill() = std::move(report_);
  outcome.chain_id = finish.chain_id;
  outcome.decode_instance = finish.decode_instance;
  outcome.attempts = finish.attempts;
  outcome.resumes = finish.resumes;
  outcome.warnings = request_.warnings;
  if (outcome.reason == FinishReason::kLength && !request_.length_note.empty()) {
    outcome.warnings.push_back(request_.length_note);
  }
  return outcome;
}

void Session::LimitOutput(int max_tokens) {
  v1::SamplingParams& sampling = request_.sampling;
  if (!request_.clip || max_tokens == sampling.max_tokens()) return;
  sampling.set_max_tokens(max_tokens);
  sampling.set_min_tokens(std::min(sampling.min_tokens(), max_tokens));
  request_.length_note =
      absl::StrCat(request_.names.max_tokens, ": none was given, and the text was cut at ",
                   max_tokens, " tokens, what the KV cache of the workers has room for beside ",
                   prompt_tokens_, " tokens of the prompt");
}

RequestEnd Session::EndOf(const FinishCall& finish, int64_t now_us) const {
  RequestEnd end;
  end.request_id = request_.request_id;
  end.trace_id = request_.trace.trace_id();
  end.endpoint = request_.endpoint;
  end.status = finish.outcome.status();
  if (finish.outcome.ok()) end.reason = *finish.outcome;
  end.duration_us = now_us - request_.arrival_us;
  end.prompt_tokens = prompt_tokens_;
  end.completion_tokens = completion_tokens_;
  end.cached_tokens = CachedTokens();
  end.ttft_us = first_token_us_ - request_.arrival_us;
  end.decode_us = last_token_us_ - first_token_us_;
  end.chain_id = finish.chain_id;
  end.decode_instance = finish.decode_instance;
  end.attempts = finish.attempts;
  end.resumes = finish.resumes;
  return end;
}

absl::Status Session::NameOverflow(const absl::Status& status) const {
  if (!IsContextOverflow(status)) return status;
  const bool prompt = FieldOf(status) == kPromptField;
  return RenameOverflow(status, prompt ? request_.names.prompt : request_.names.max_tokens);
}

RequestEnd Session::Finish(const FinishCall& finish, int64_t now_us) {
  RequestEnd end = EndOf(finish, now_us);
  if (finish.outcome.ok()) {
    Outcome outcome = MakeOutcome(finish, now_us);
    end.reason = outcome.reason;
    metrics_.CountEnd(end);
    request_.trace.Finish(end, now_us);
    request_.sink->OnFinished(std::move(outcome));
  } else {
    metrics_.CountEnd(end);
    request_.trace.Finish(end, now_us);
    request_.sink->OnError(NameOverflow(finish.outcome.status()));
  }
  return end;
}

RequestEnd Session::Drop(const FinishCall& finish, int64_t now_us) {
  RequestEnd end = EndOf(finish, now_us);
  request_.trace.Finish(end, now_us);
  return end;
}

}  // namespace baton::router
