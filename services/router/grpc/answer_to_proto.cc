#include "services/router/grpc/answer_to_proto.h"

#include <string>
#include <utility>

namespace baton::router {
namespace {

v1::FinishReason ReasonToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kAbort:
      return v1::FINISH_REASON_ABORT;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

}  // namespace

void SetLogprobs(const TokenPiece& token, v1::TokenLogprobs& logprobs) {
  if (token.logprob.has_value()) logprobs.set_logprob(*token.logprob);
  for (const TokenPiece::Top& top : token.top) {
    v1::TokenLogprob& entry = *logprobs.add_top();
    entry.set_token_id(top.id);
    entry.set_logprob(top.logprob);
  }
}

void AddPromptTokens(const std::vector<TokenPiece>& tokens, v1::PromptLogprobs& prompt) {
  for (const TokenPiece& token : tokens) {
    prompt.add_token_ids(token.id);
    SetLogprobs(token, *prompt.add_logprobs());
  }
}

v1::Finished FinishedToProto(Outcome outcome) {
  v1::Finished finished;
  finished.set_reason(ReasonToProto(outcome.reason));
  finished.set_matched_stop(std::move(outcome.matched_stop));
  finished.set_text(std::move(outcome.text));
  *finished.mutable_usage() = std::move(outcome.usage);
  *finished.mutable_timing() = std::move(outcome.timing);
  finished.set_prefill_chain(std::move(outcome.chain_id));
  finished.set_decode_instance(std::move(outcome.decode_instance));
  finished.set_attempts(outcome.attempts);
  for (std::string& warning : outcome.warnings) finished.add_warnings(std::move(warning));
  return finished;
}

}  // namespace baton::router
