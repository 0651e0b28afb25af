// baton.v1.Worker: routers that say where they are.
#ifndef SERVICES_WORKER_ANNOUNCE_SERVICE_H_
#define SERVICES_WORKER_ANNOUNCE_SERVICE_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "proto/baton/v1/cluster.grpc.pb.h"
#include "services/worker/cluster_client.h"

namespace baton::worker {

class AnnounceService : public v1::Worker::CallbackService {
 public:
  // `welcome`: the worker was given no addresses of routers.
  explicit AnnounceService(bool welcome) : welcome_(welcome) {}

  // Until then, and after Attach(nullptr), announcements are answered with UNAVAILABLE. `client`
  // must outlive this or be detached.
  void Attach(const ClusterClient* client);

  grpc::ServerUnaryReactor* Announce(grpc::CallbackServerContext* context,
                                     const v1::AnnounceRequest* request,
                                     v1::AnnounceResponse* response) override;

 private:
  absl::Status Take(const std::string& peer, const v1::AnnounceRequest& request);

  const bool welcome_;
  Mutex mutex_;
  const ClusterClient* client_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

// The numeric HOST:PORT at which the router is that sent `request`; `peer` as gRPC names the other
// end of a call. InvalidArgument if there is none.
absl::StatusOr<std::string> AnnouncedAddress(const std::string& peer,
                                             const v1::AnnounceRequest& request);

}  // namespace baton::worker

#endif  // SERVICES_WORKER_ANNOUNCE_SERVICE_H_
