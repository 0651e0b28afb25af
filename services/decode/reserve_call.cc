#include "services/decode/reserve_call.h"

#include "common/base/clock.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"

namespace baton::decode {

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

}  // namespace baton::decode
