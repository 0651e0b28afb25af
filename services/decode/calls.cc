#include "services/decode/calls.h"

#include "common/base/clock.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"

namespace baton::decode {

// ---- ReserveCall ----

std::shared_ptr<ReserveCall> ReserveCall::Create(v1::ReserveResponse* response,
                                                 tracing::ActiveSpan span) {
  std::shared_ptr<ReserveCall> call(new ReserveCall(response, std::move(span)));
  call->self_ = call;
  return call;
}

bool ReserveCall::Claim() {
  MutexLock lock(&mutex_);
  return !std::exchange(answered_, true);
}

// gRPC uses `response_` until Finish, which only the thread that claims the answer calls.
void ReserveCall::Reply(const Ticket& ticket) {
  if (!Claim()) return;
  *response_->mutable_ticket() = rpc::ToProto(ticket);
  if (span_) {
    span_.Set("baton.kv.pages", ticket.prompt_pages);
    span_.End(NowUs());
  }
  Finish(grpc::Status::OK);
}

void ReserveCall::Refuse(const absl::Status& status) {
  if (!Claim()) return;
  if (span_) span_.End(NowUs(), status);
  Finish(rpc::ToGrpc(status));
}

void ReserveCall::SetCancelHandler(std::function<void()> on_cancel) {
  {
    MutexLock lock(&mutex_);
    if (!cancelled_) {
      on_cancel_ = std::move(on_cancel);
      return;
    }
  }
  on_cancel();
}

void ReserveCall::OnCancel() {
  std::function<void()> on_cancel;
  {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    on_cancel = std::exchange(on_cancel_, nullptr);
  }
  if (on_cancel) on_cancel();
  Refuse(absl::CancelledError("the call was cancelled"));
}

// ---- TokenStream ----

std::shared_ptr<TokenStream> TokenStream::Create(grpc::CallbackServerContext* context,
                                                 StreamTrace trace) {
  std::shared_ptr<TokenStream> stream(new TokenStream(context, std::move(trace)));
  stream->self_ = stream;
  return stream;
}

bool TokenStream::Push(v1::DecodeGenerateResponse response) {
  MutexLock lock(&mutex_);
  if (ending_ || cancelled_) return true;  // The stream is ending; no reader is left.
  if (queue_.size() >= kMaxQueued) return false;
  queue_.push_back(std::move(response));
  Advance();
  return true;
}

void TokenStream::Finish() { End(absl::OkStatus(), /*drop=*/false); }

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
    grpc::ServerWriteReactor<v1::DecodeGenerateResponse>::Finish(status_);
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

}  // namespace baton::decode
