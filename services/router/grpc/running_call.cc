#include "services/router/grpc/running_call.h"

#include <utility>

#include "common/base/status.h"

namespace baton::router {

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

}  // namespace baton::router
