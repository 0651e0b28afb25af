// The RPCs that a worker makes to one router (baton.v1.Cluster), over a connection of their own:
// one router that does not answer delays nothing of another.
#ifndef SERVICES_WORKER_ROUTER_RPCS_H_
#define SERVICES_WORKER_ROUTER_RPCS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/call_tracker.h"
#include "common/rpc/client_stream.h"
#include "common/rpc/cluster_security.h"
#include "proto/baton/v1/cluster.grpc.pb.h"

namespace baton::worker {

class RouterRpcs {
 public:
  // `security` may be null.
  RouterRpcs(const std::string& address, std::shared_ptr<const rpc::ClusterSecurity> security);
  // Cancels what is under way and waits for the last callback; not on gRPC's threads.
  ~RouterRpcs();
  RouterRpcs(const RouterRpcs&) = delete;
  RouterRpcs& operator=(const RouterRpcs&) = delete;

  // All callbacks run on gRPC's threads and must not block; each RPC ends once.
  using LeaseCall = rpc::ClientStream<v1::LeaseRequest, v1::LeaseResponse>;
  std::shared_ptr<LeaseCall> OpenLease(LeaseCall::Callbacks callbacks);
  void Find(v1::FindRequest request, int64_t timeout_ms,
            std::function<void(const absl::Status&, const v1::FindResponse&)> done);

 private:
  const std::unique_ptr<v1::Cluster::Stub> stub_;
  rpc::CallTracker tracker_;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_ROUTER_RPCS_H_
