// A call of the gateway that its client may cancel at any time, before Submit has returned, too.
#ifndef SERVICES_ROUTER_GRPC_RUNNING_CALL_H_
#define SERVICES_ROUTER_GRPC_RUNNING_CALL_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "services/router/gateway.h"

namespace baton::router {

// Thread-safe. The gateway outlives it.
class RunningCall {
 public:
  explicit RunningCall(Gateway& gateway) : gateway_(gateway) {}

  // Once. An error means that `sink` will never be called.
  absl::Status Submit(GenerateCall call, std::shared_ptr<ResponseSink> sink);
  // The gateway lets the sink go without a terminal call, now or when Submit returns.
  void Cancel();

 private:
  Gateway& gateway_;
  Mutex mutex_;
  uint64_t call_id_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: Submit has not returned.
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_GRPC_RUNNING_CALL_H_
