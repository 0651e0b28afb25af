#include "services/worker/token_stream.h"

#include "common/base/clock.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"

namespace baton::worker {

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
  End(absl::OkStatus());
}

void TokenStream::SetCancelHandler(std::function<void()> on_cancel) {
  {
    MutexLock lock(&cancel_mutex_);
    if (!cancelled_) {
      on_cancel_ = std::move(on_cancel);
      return;
    }
  }
  on_cancel();
}

void TokenStream::TellCancelled() {
  std::function<void()> on_cancel;
  {
    MutexLock lock(&cancel_mutex_);
    cancelled_ = true;
    on_cancel = std::exchange(on_cancel_, nullptr);
  }
  if (on_cancel) on_cancel();
}

std::shared_ptr<GenerateCall> GenerateCall::Create(grpc::CallbackServerContext* context,
                                                   StreamTrace trace) {
  std::shared_ptr<GenerateCall> call(new GenerateCall(context, std::move(trace)));
  call->self_ = call;
  return call;
}

bool GenerateCall::Push(v1::DecodeGenerateResponse response) {
  MutexLock lock(&mutex_);
  if (ending_) return true;  // No reader is left.
  if (queue_.size() >= kMaxQueued) return false;
  queue_.push_back(std::move(response));
  Advance();
  return true;
}

void GenerateCall::End(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (std::exchange(ending_, true)) return;
  status_ = rpc::ToGrpc(status);
  if (!status.ok()) queue_.resize(writing_ ? 1 : 0);
  Advance();
}

// gRPC's operations may be started under the lock: their callbacks come on threads of their own.
void GenerateCall::Advance() {
  if (writing_ || ended_) return;
  if (!queue_.empty()) {
    writing_ = true;
    StartWrite(&queue_.front());
  } else if (ending_) {
    ended_ = true;
    Finish(status_);
  }
}

void GenerateCall::OnWriteDone(bool ok) {
  MutexLock lock(&mutex_);
  writing_ = false;
  queue_.pop_front();
  if (!ok) queue_.clear();  // The reader is gone; OnCancel tells the shell.
  Advance();
}

void GenerateCall::OnCancel() {
  TellCancelled();
  Fail(absl::CancelledError("the stream was cancelled"));
}

}  // namespace baton::worker
