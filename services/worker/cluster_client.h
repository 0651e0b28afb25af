// A worker's membership: registers with the router, renews the lease, and keeps the data plane's
// endpoints in step with the router's view of the cluster. Used by decode services and prefill
// stages alike.
#ifndef SERVICES_WORKER_CLUSTER_CLIENT_H_
#define SERVICES_WORKER_CLUSTER_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/transport/data_plane.h"
#include "common/types/instance.h"
#include "common/types/kv_layout.h"
#include "common/types/role.h"
#include "proto/baton/v1/cluster.pb.h"

namespace baton::worker {

// What a worker needs to know of another one.
struct PeerWorker {
  InstanceRef instance;
  Role role = Role::kPrefill;
  std::string grpc_address;
  std::string data_address;
  LayerRange layers;
  std::string chain_id;  // Prefill only, as are pp_rank and pp_size.
  int pp_rank = 0;
  int pp_size = 1;
  bool operator==(const PeerWorker&) const = default;
};

struct ClusterClientOptions {
  std::string router_address;  // host:port
  v1::WorkerInfo self;         // As it registers, data_address included.
  int64_t heartbeat_interval_ms = 500;
  // After another registration, workers that were known and that the router does not list (yet) are
  // kept for so long, unless another incarnation of theirs is listed: a router that has just
  // started hears of its workers one by one, within the backoff of their registrations.
  int64_t rejoin_grace_ms = 5000;
  DataPlane* data_plane = nullptr;  // Not owned; outlives the client.

  struct Status {
    bool ready = false;
    v1::WorkerLoad load;
  };
  // Asked before every heartbeat, on the client's thread; must not wait for a peer.
  std::function<Status()> status;
  // Called on the client's thread after each change of the view whose endpoints stand, with every
  // live worker but this one, those kept included. May be null.
  std::function<void(const std::vector<PeerWorker>&)> on_view;
  // The router refuses this worker (another model, page size, chain ...): it can never join, so the
  // process should end with this status. Called once, on the client's thread, which then ends.
  std::function<void(const absl::Status&)> on_rejected;
};

// Heartbeats go every interval, and at once when there is news: the router says that the view has
// changed (view_watch.h), a view has been applied, or ReportSoon was called.
//
// One thread of its own, so that a slow or dead router delays nothing else. It survives the router:
// running requests go on, and the worker registers again, with a backoff of at most two seconds,
// until it is heard.
//
// An endpoint belongs to one incarnation of a peer: a new incarnation is a new PeerId, the old one
// is disconnected. Decode services connect to every prefill stage, stages to every decode service
// and to the other stages of their chain. A view is reported as applied once all endpoints that it
// asks for stand; until then the router pairs nothing over them.
class ClusterClient {
 public:
  explicit ClusterClient(ClusterClientOptions options);
  ~ClusterClient();  // Stops.

  void Start();
  // Ends the thread and the RPC under way. Leaves the endpoints to the data plane's owner.
  // Idempotent; any thread but the client's.
  void Stop();

  // Any thread:

  // Accepted by the router and heard from it since.
  bool registered() const;
  // The endpoint of one incarnation of a peer; nullopt: not connected.
  std::optional<PeerId> Find(const InstanceRef& instance) const;
  // Every endpoint of decode services (for lease heartbeats of stages) or of prefill stages.
  std::vector<PeerId> Endpoints(Role role) const;
  // What `status` says has changed: the router should hear of it now.
  void ReportSoon() const;
  // Forward DataPlane::SetPeerErrorHandler here: the endpoint is opened anew at the next heartbeat
  // if the router still lists the peer.
  void OnPeerFailed(PeerId peer);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CLUSTER_CLIENT_H_
