#include "services/router/grpc/whole_answer.h"

#include <string>
#include <utility>

#include "common/rpc/grpc_status.h"
#include "services/router/grpc/answer_to_proto.h"

namespace baton::router {

WholeAnswerCall* WholeAnswerCall::Start(Gateway& gateway, absl::StatusOr<GenerateCall> call,
                                        v1::WholeAnswer* response) {
  auto answer = std::make_shared<WholeAnswerCall>(gateway, response);
  answer->self_ = answer;
  absl::Status status = call.status();
  if (status.ok()) {
    response->set_request_id(call->request_id);
    answer->want_logprobs_ = call->sampling.logprobs;
    status = answer->running_.Submit(*std::move(call), answer);
  }
  if (!status.ok()) answer->OnError(std::move(status));
  return answer.get();
}

void WholeAnswerCall::OnPromptTokens(std::vector<TokenPiece> tokens) {
  MutexLock lock(&mutex_);
  if (response_ != nullptr) AddPromptTokens(tokens, *response_->mutable_prompt_logprobs());
}

void WholeAnswerCall::OnTokens(TextPiece piece) {
  MutexLock lock(&mutex_);
  if (response_ == nullptr) return;
  response_->mutable_text()->append(piece.text);
  for (const TokenPiece& token : piece.tokens) {
    response_->add_token_ids(token.id);
    if (want_logprobs_) SetLogprobs(token, *response_->add_logprobs());
  }
}

void WholeAnswerCall::OnFinished(Outcome outcome) {
  MutexLock lock(&mutex_);
  if (response_ == nullptr) return;
  response_->mutable_text()->append(std::exchange(outcome.text, ""));
  *response_->mutable_finished() = FinishedToProto(std::move(outcome));
  End(grpc::Status::OK);
}

void WholeAnswerCall::OnError(absl::Status status) {
  MutexLock lock(&mutex_);
  End(rpc::ToGrpc(status));
}

void WholeAnswerCall::OnCancel() {
  {
    MutexLock lock(&mutex_);
    End(grpc::Status(grpc::StatusCode::CANCELLED, "the client cancelled the call"));
  }
  running_.Cancel();
}

void WholeAnswerCall::End(const grpc::Status& status) {
  if (std::exchange(response_, nullptr) != nullptr) Finish(status);
}

}  // namespace baton::router
