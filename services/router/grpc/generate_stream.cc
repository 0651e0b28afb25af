#include "services/router/grpc/generate_stream.h"

#include <utility>

#include "common/rpc/grpc_status.h"
#include "services/router/grpc/answer_to_proto.h"

namespace baton::router {

GenerateStream* GenerateStream::Start(Gateway& gateway, absl::StatusOr<GenerateCall> call) {
  auto stream = std::make_shared<GenerateStream>(gateway);
  stream->self_ = stream;
  absl::Status status = call.status();
  if (status.ok()) {
    {
      MutexLock lock(&stream->mutex_);
      stream->request_id_ = call->request_id;
    }
    stream->want_logprobs_ = call->sampling.logprobs;
    status = stream->running_.Submit(*std::move(call), stream);
  }
  if (!status.ok()) stream->End(rpc::ToGrpc(status));
  return stream.get();
}

void GenerateStream::OnPromptTokens(std::vector<TokenPiece> tokens) {
  v1::GenerateResponse message;
  AddPromptTokens(tokens, *message.mutable_prompt_logprobs());
  Enqueue(std::move(message));
}

void GenerateStream::OnTokens(TextPiece piece) {
  v1::GenerateResponse message;
  v1::TokenChunk& chunk = *message.mutable_tokens();
  chunk.set_text(std::move(piece.text));
  for (const TokenPiece& token : piece.tokens) {
    chunk.add_token_ids(token.id);
    if (want_logprobs_) SetLogprobs(token, *chunk.add_logprobs());
  }
  Enqueue(std::move(message));
}

void GenerateStream::OnFinished(Outcome outcome) {
  v1::GenerateResponse message;
  *message.mutable_finished() = FinishedToProto(std::move(outcome));
  Enqueue(std::move(message));
  End(grpc::Status::OK);
}

void GenerateStream::OnError(absl::Status status) { End(rpc::ToGrpc(status)); }

void GenerateStream::Enqueue(v1::GenerateResponse message) {
  MutexLock lock(&mutex_);
  if (cancelled_) return;
  message.set_request_id(request_id_);
  queue_.push_back(std::move(message));
  Advance();
}

void GenerateStream::End(grpc::Status status) {
  MutexLock lock(&mutex_);
  if (end_.has_value()) return;
  end_ = std::move(status);
  Advance();
}

void GenerateStream::Advance() {
  if (writing_ || finished_) return;
  if (!queue_.empty()) {
    writing_ = true;
    StartWrite(&queue_.front());
  } else if (end_.has_value()) {
    finished_ = true;
    Finish(*end_);
  }
}

void GenerateStream::OnWriteDone(bool) {
  MutexLock lock(&mutex_);
  writing_ = false;
  queue_.pop_front();
  if (cancelled_) queue_.clear();
  Advance();
}

void GenerateStream::OnCancel() {
  {
    MutexLock lock(&mutex_);
    if (finished_) return;
    cancelled_ = true;
    // The message that is being written belongs to gRPC until OnWriteDone.
    while (queue_.size() > (writing_ ? 1 : 0)) queue_.pop_back();
    end_ = grpc::Status(grpc::StatusCode::CANCELLED, "the client cancelled the call");
    Advance();
  }
  running_.Cancel();
}

void GenerateStream::OnDone() { self_.reset(); }

}  // namespace baton::router
