#include "services/links/link_call.h"

#include <utility>

#include "common/rpc/grpc_status.h"

namespace baton::links {

std::shared_ptr<LinkCall> LinkCall::Open(Role role, const std::shared_ptr<grpc::Channel>& channel,
                                         rpc::CallTracker& tracker, Callbacks callbacks) {
  std::shared_ptr<LinkCall> call(new LinkCall(tracker, std::move(callbacks)));
  call->self_ = call;
  if (role == Role::kPrefill) {
    call->stage_ = v1::Prefill::NewStub(channel);
    call->stage_->async()->Link(&*call->context_, call.get());
  } else {
    call->follower_ = v1::DecodeRanks::NewStub(channel);
    call->follower_->async()->Link(&*call->context_, call.get());
  }
  call->AddHold();
  call->StartRead(&call->response_);
  call->StartCall();
  return call;
}

void LinkCall::Write(v1::LinkRequest request) {
  bool overrun = false;
  {
    MutexLock lock(&mutex_);
    if (closed_) return;
    overrun = unsent_.size() >= kMaxUnsent;
    if (!overrun) {
      unsent_.push_back(std::move(request));
      if (unsent_.size() == 1) StartWrite(&unsent_.front());
    }
  }
  if (overrun) Cancel();
}

void LinkCall::Cancel() {
  context_->TryCancel();
  Close();
}

void LinkCall::Close() {
  {
    MutexLock lock(&mutex_);
    if (std::exchange(closed_, true)) return;
  }
  RemoveHold();
}

void LinkCall::OnReadDone(bool ok) {
  if (!ok) {
    Close();
    return;
  }
  if (!callbacks_.on_response(response_)) {
    Cancel();
    return;
  }
  StartRead(&response_);
}

void LinkCall::OnWriteDone(bool ok) {
  if (!ok) {
    Close();
    return;
  }
  MutexLock lock(&mutex_);
  unsent_.pop_front();
  if (!unsent_.empty() && !closed_) StartWrite(&unsent_.front());
}

void LinkCall::OnDone(const grpc::Status& status) {
  callbacks_.on_done(rpc::FromGrpc(status));
  const std::shared_ptr<LinkCall> last = std::move(self_);
}

}  // namespace baton::links
