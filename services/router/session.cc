#include "services/router/session.h"

#include <utility>

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
}

TokenPiece Session::PieceOf(const SampledToken& token) const {
  TokenPiece piece;
  piece.id = token.token;
  if (!request_.sampling.logprobs()) return piece;
  piece.bytes = std::string(tokenizer_.TokenBytes(token.token));
  piece.logprob = token.logprob;
  for (const TokenLogprob& top : token.top) {
    piece.top.push_back({top.token, std::string(tokenizer_.TokenBytes(top.token)), top.logprob});
  }
  return piece;
}

bool Session::EmitToken(const SampledToken& token, int64_t now_us) {
  if (completion_tokens_ == 0) {
    first_token_us_ = now_us;
    metrics_.CountFirstToken(now_us - request_.arrival_us);
    // No retry from here on, so the prompt is needed no more.
    std::vector<int32_t>().swap(request_.prompt_ids);
  }
  last_token_us_ = now_us;
  ++completion_tokens_;
  TextAssembler::Piece text = assembler_.Append(token.token);
  TextPiece piece;
  piece.text = std::move(text.text);
  piece.tokens.push_back(PieceOf(token));
  request_.sink->OnTokens(std::move(piece));
  matched_stop_ = std::move(text.stop);
  return matched_stop_.has_value();
}

Outcome Session::MakeOutcome(const FinishClient& finish, int64_t now_us) {
  Outcome outcome;
  outcome.reason = *finish.outcome;
  if (!matched_stop_.has_value()) {
    TextAssembler::Piece rest = assembler_.Finish();
    outcome.text = std::move(rest.text);
    matched_stop_ = std::move(rest.stop);
    if (matched_stop_.has_value() && outcome.reason == FinishReason::kLength) {
      outcome.reason = FinishReason::kStop;
    }
  }
  outcome.matched_stop = matched_stop_.value_or("");
  outcome.usage.set_prompt_tokens(prompt_tokens_);
  outcome.usage.set_completion_tokens(completion_tokens_);
  v1::RequestTiming& timing = outcome.timing;
  timing.set_queue_us((paired_us_ == 0 ? now_us : paired_us_) - request_.arrival_us);
  if (completion_tokens_ > 0) timing.set_ttft_us(first_token_us_ - request_.arrival_us);
  timing.set_e2e_us(now_us - request_.arrival_us);
  timing.set_reserve_us(reserve_us_);
  *timing.mutable_prefill() = std::move(report_);
  outcome.chain_id = finish.chain_id;
  outcome.decode_instance = finish.decode_instance;
  outcome.attempts = finish.attempts;
  return outcome;
}

RequestEnd Session::EndOf(const FinishClient& finish, int64_t now_us) const {
  RequestEnd end;
  end.request_id = request_.request_id;
  end.endpoint = request_.endpoint;
  end.status = finish.outcome.status();
  if (finish.outcome.ok()) end.reason = *finish.outcome;
  end.duration_us = now_us - request_.arrival_us;
  end.prompt_tokens = prompt_tokens_;
  end.completion_tokens = completion_tokens_;
  end.ttft_us = first_token_us_ - request_.arrival_us;
  end.decode_us = last_token_us_ - first_token_us_;
  end.chain_id = finish.chain_id;
  end.decode_instance = finish.decode_instance;
  end.attempts = finish.attempts;
  return end;
}

RequestEnd Session::Finish(const FinishClient& finish, int64_t now_us) {
  RequestEnd end = EndOf(finish, now_us);
  if (finish.outcome.ok()) {
    Outcome outcome = MakeOutcome(finish, now_us);
    end.reason = outcome.reason;
    metrics_.CountEnd(end);
    request_.sink->OnFinished(std::move(outcome));
  } else {
    metrics_.CountEnd(end);
    request_.sink->OnError(finish.outcome.status());
  }
  return end;
}

}  // namespace baton::router
