#include "services/worker/token_stream.h"

#include "common/base/clock.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"

namespace baton::worker {

std::shared_ptr<TokenStream> TokenStream::Create(grpc::CallbackServerContext* context,
                                                 StreamTrace trace, uint64_t attempt_id,
                                                 std::shared_ptr<TokenRelay> relay) {
  std::shared_ptr<TokenStream> stream(
      new TokenStream(context, std::move(trace), attempt_id, std::move(relay)));
  stream->self_ = stream;
  return stream;
}

bool TokenStream::Push(v1::DecodeGenerateResponse response) {
  MutexLock lock(&mutex_);
  if (ending_ || cancelled_) return true;  // The stream is ending; no reader is left.
  if (relay_ != nullptr) return relay_->Push(attempt_id_, std::move(response));
  if (queue_.size() >= kMaxQueued) return false;
  queue_.push_back(std::move(response));
  Advance();
  return true;
}

bool TokenStream::PushToken(const SampledToken& token, bool logprobs) {
  v1::DecodeGenerateResponse response;
  response.mutable_token()->set_token_id(token.token);
  if (logprobs) *response.mutable_token()->mutable_logprobs() = rpc::LogprobsToProto(token);
  if (trace_.recording()) trace_.OnToken(NowUs());
  return Push(std::move(response));
}

void TokenStream::Conclude(const absl::StatusOr<FinishReason>& outcome) {
  trace_.End(outcome.status(), NowUs());
  if (!outcome.ok()) return Fail(outcome.status());
  v1::DecodeGenerateResponse response;
  response.mutable_finished()->set_reason(
      *outcome == FinishReason::kStop ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH);
  if (!Push(std::move(response))) Break();
  End(absl::OkStatus(), /*drop=*/false);
}

void TokenStream::Fail(const absl::Status& status) { End(status, /*drop=*/true); }

void TokenStream::End(const absl::Status& status, bool drop) {
  MutexLock lock(&mutex_);
  if (std::exchange(ending_, true)) return;
  status_ = rpc::ToGrpc(status);
  if (drop) queue_.resize(writing_ ? 1 : 0);
  Advance();
}

// gRPC's operations may be started under the lock: their callbacks come on threads of their own.
void TokenStream::Advance() {
  if (writing_ || ended_) return;
  if (!queue_.empty()) {
    writing_ = true;
    StartWrite(&queue_.front());
  } else if (ending_) {
    ended_ = true;
    Finish(status_);
  }
}

void TokenStream::OnWriteDone(bool ok) {
  MutexLock lock(&mutex_);
  writing_ = false;
  queue_.pop_front();
  if (!ok) queue_.clear();  // The reader is gone; OnCancel tells the shell.
  Advance();
}

void TokenStream::SetCancelHandler(std::function<void()> on_cancel) {
  {
    MutexLock lock(&mutex_);
    if (!cancelled_) {
      on_cancel_ = std::move(on_cancel);
      return;
    }
  }
  on_cancel();
}

void TokenStream::OnCancel() {
  std::function<void()> on_cancel;
  {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    on_cancel = std::exchange(on_cancel_, nullptr);
  }
  if (on_cancel) on_cancel();
  Fail(absl::CancelledError("the stream was cancelled"));
}

}  // namespace baton::worker
