// A worker's Cluster.Watch call: the router says that a heartbeat is wanted at once. A call that
// breaks is opened anew, at most once in `reopen_ms`; while there is none, the heartbeats every
// interval do alone.
#ifndef SERVICES_WORKER_VIEW_WATCH_H_
#define SERVICES_WORKER_VIEW_WATCH_H_

#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/rpc/call_tracker.h"
#include "proto/baton/v1/cluster.grpc.pb.h"

namespace baton::worker {

class ViewWatch {
 public:
  // `on_news` is called on gRPC's threads for every notice and when a call ends: the router may
  // have gone, or have taken this worker for dead. `stub` outlives this.
  ViewWatch(v1::Cluster::Stub& stub, v1::InstanceRef self, std::function<void()> on_news);
  // Cancels the call and waits for its last callback.
  ~ViewWatch();

  // Opens a call if none stands, at most one in `reopen_ms`. After a registration one that stands
  // is older: the router refuses it, and the next is opened at once. One thread at a time.
  void Keep(int64_t now_us, int64_t reopen_ms, bool registered_anew);

 private:
  class Call;
  void OnEnd();

  v1::Cluster::Stub& stub_;
  const v1::InstanceRef self_;
  const std::function<void()> on_news_;
  int64_t opened_us_ = 0;
  Mutex mutex_;
  bool stands_ ABSL_GUARDED_BY(mutex_) = false;
  rpc::CallTracker tracker_;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_VIEW_WATCH_H_
