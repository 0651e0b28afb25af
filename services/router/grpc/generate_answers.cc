#include "services/router/grpc/generate_answers.h"

#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/rpc/grpc_status.h"

namespace baton::router {
namespace {

grpc::Status Cancelled() { return {grpc::StatusCode::CANCELLED, "the client cancelled the call"}; }

// A message that had more is not kept for its memory.
constexpr int kKeptTokens = 16;

}  // namespace

std::shared_ptr<GenerateStream> GenerateStream::Open(Gateway& gateway) {
  auto stream = std::make_shared<GenerateStream>(gateway);
  stream->self_ = stream;
  return stream;
}

void GenerateStream::Begin(absl::StatusOr<GenerateCall> call) {
  const std::shared_ptr<GenerateStream> self = self_;
  absl::Status status = call.status();
  bool cancelled = false;
  {
    MutexLock lock(&mutex_);
    begun_ = true;
    if (status.ok()) request_id_ = call->request_id;
    cancelled = cancelled_;
  }
  if (cancelled) return Advance();
  if (status.ok()) {
    want_logprobs_ = call->sampling.logprobs();
    status = running_.Submit(*std::move(call), self);
  }
  if (!status.ok()) End(rpc::ToGrpc(status));
}

void GenerateStream::OnPromptTokens(std::vector<TokenPiece> tokens) {
  v1::GenerateResponse message;
  AddPromptTokens(tokens, *message.mutable_prompt_logprobs());
  Enqueue(std::move(message));
}

void GenerateStream::OnTokens(TextPiece piece) {
  {
    MutexLock lock(&mutex_);
    if (cancelled_) return;
    v1::TokenChunk& chunk = OpenChunk();
    chunk.mutable_text()->append(piece.text);
    for (const TokenPiece& token : piece.tokens) {
      chunk.add_token_ids(token.id);
      if (want_logprobs_) SetLogprobs(token, *chunk.add_logprobs());
    }
  }
  Advance();
}

// A client that reads slower than tokens come gets several in one message.
v1::TokenChunk& GenerateStream::OpenChunk() {
  const size_t written = writing_ ? 1 : 0;  // The first of the queue is gRPC's meanwhile.
  if (queue_.size() == written || !queue_.back().has_tokens()) {
    queue_.push_back(std::exchange(spare_, {}));
    queue_.back().set_request_id(request_id_);
    queue_.back().mutable_tokens()->Clear();
  }
  return *queue_.back().mutable_tokens();
}

void GenerateStream::OnFinished(Outcome outcome) {
  v1::GenerateResponse message;
  *message.mutable_finished() = FinishedToProto(std::move(outcome));
  Enqueue(std::move(message));
  End(grpc::Status::OK);
}

void GenerateStream::OnError(absl::Status status) { End(rpc::ToGrpc(status)); }

void GenerateStream::Enqueue(v1::GenerateResponse message) {
  {
    MutexLock lock(&mutex_);
    if (cancelled_) return;
    message.set_request_id(request_id_);
    queue_.push_back(std::move(message));
  }
  Advance();
}

void GenerateStream::End(grpc::Status status) {
  {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    end_ = std::move(status);
  }
  Advance();
}

void GenerateStream::Advance() {
  const v1::GenerateResponse* next = nullptr;
  std::optional<grpc::Status> end;
  {
    MutexLock lock(&mutex_);
    if (!begun_ || writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      next = &queue_.front();
    }
    if (queue_.size() <= 1 && end_.has_value() && (next == nullptr || end_->ok())) {
      finished_ = true;
      end = end_;
    }
  }
  if (next == nullptr) {
    if (end.has_value()) Finish(*end);
  } else if (end.has_value()) {
    StartWriteAndFinish(next, {}, *end);  // One operation, and one end of it to be handled.
  } else {
    StartWrite(next);
  }
}

void GenerateStream::OnWriteDone(bool) {
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    v1::GenerateResponse& written = queue_.front();
    const bool kept = written.has_tokens() && written.tokens().token_ids_size() <= kKeptTokens;
    if (kept) spare_ = std::move(written);
    queue_.pop_front();
    if (cancelled_) queue_.clear();
  }
  Advance();
}

void GenerateStream::OnCancel() {
  {
    MutexLock lock(&mutex_);
    if (finished_) return;
    cancelled_ = true;
    // The message that is being written belongs to gRPC until OnWriteDone.
    while (queue_.size() > (writing_ ? 1 : 0)) queue_.pop_back();
    end_ = Cancelled();
  }
  Advance();
  running_.Cancel();
}

void GenerateStream::OnDone() { self_.reset(); }

absl::Status RunningCall::Submit(GenerateCall call, std::shared_ptr<ResponseSink> sink) {
  BATON_ASSIGN_OR_RETURN(const Submitted submitted,
                         gateway_.Submit(std::move(call), std::move(sink)));
  bool cancelled = false;
  {
    MutexLock lock(&mutex_);
    call_id_ = submitted.call_id;
    cancelled = cancelled_;
  }
  if (cancelled) gateway_.Cancel(submitted.call_id);
  return absl::OkStatus();
}

void RunningCall::Cancel() {
  uint64_t call_id = 0;
  {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    call_id = call_id_;
  }
  if (call_id != 0) gateway_.Cancel(call_id);
}

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
  finished.set_resumes(outcome.resumes);
  for (std::string& warning : outcome.warnings) finished.add_warnings(std::move(warning));
  return finished;
}

std::shared_ptr<WholeAnswerCall> WholeAnswerCall::Open(Gateway& gateway,
                                                       v1::WholeAnswer* response) {
  auto answer = std::make_shared<WholeAnswerCall>(gateway, response);
  answer->self_ = answer;
  return answer;
}

void WholeAnswerCall::Begin(absl::StatusOr<GenerateCall> call) {
  const std::shared_ptr<WholeAnswerCall> self = self_;
  absl::Status status = call.status();
  {
    MutexLock lock(&mutex_);
    begun_ = true;
    if (cancelled_) return End(Cancelled());
    if (status.ok()) response_->set_request_id(call->request_id);
  }
  if (status.ok()) {
    want_logprobs_ = call->sampling.logprobs();
    status = running_.Submit(*std::move(call), self);
  }
  if (!status.ok()) OnError(std::move(status));
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
    cancelled_ = true;
    if (begun_) End(Cancelled());
  }
  running_.Cancel();
}

void WholeAnswerCall::End(const grpc::Status& status) {
  if (std::exchange(response_, nullptr) != nullptr) Finish(status);
}

}  // namespace baton::router
