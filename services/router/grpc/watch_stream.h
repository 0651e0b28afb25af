// One Cluster.Watch call: a notice for a worker, and another one when the first is written and more
// has changed since. So a worker that doesn't read costs one notice, however often its members
// change.
#ifndef SERVICES_ROUTER_GRPC_WATCH_STREAM_H_
#define SERVICES_ROUTER_GRPC_WATCH_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/types/instance.h"
#include "proto/baton/v1/cluster.pb.h"
#include "services/router/router_shell.h"

namespace baton::router {

class WatchStream : public grpc::ServerWriteReactor<v1::WatchNotice> {
 public:
  // The stream owns itself until gRPC is done with it; `shell` outlives it.
  static WatchStream* Start(RouterShell& shell, InstanceRef instance);
  static WatchStream* Refuse(RouterShell& shell, const absl::Status& status);
  explicit WatchStream(RouterShell& shell) : shell_(shell) {}

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Notify(uint64_t view_version);
  void End(const absl::Status& status);
  // Starts the next write or, at the end, finishes. At most one write is outstanding.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  RouterShell& shell_;
  Mutex mutex_;
  uint64_t rpc_id_ ABSL_GUARDED_BY(mutex_) = 0;     // 0: the shell has not named it yet.
  v1::WatchNotice notice_ ABSL_GUARDED_BY(mutex_);  // Being written.
  std::optional<uint64_t> next_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<WatchStream> self_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_GRPC_WATCH_STREAM_H_
