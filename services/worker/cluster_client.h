// A worker's memberships at its routers: finds them, registers with each, renews the leases, and
// opens the data plane's endpoints where they are wanted. Used by decode services and prefill
// stages alike. Runs services/worker/core/memberships.h, which decides.
#ifndef SERVICES_WORKER_CLUSTER_CLIENT_H_
#define SERVICES_WORKER_CLUSTER_CLIENT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/event_loop.h"
#include "common/base/serial_events.h"
#include "common/base/sync.h"
#include "common/net/host.h"
#include "common/rpc/cluster_security.h"
#include "common/transport/data_plane.h"
#include "common/types/instance.h"
#include "proto/baton/v1/cluster.pb.h"
#include "services/worker/core/drain.h"
#include "services/worker/core/memberships.h"
#include "services/worker/core/peer_worker.h"
#include "services/worker/core/taken_prompts.h"
#include "services/worker/name_resolver.h"
#include "services/worker/router_rpcs.h"

namespace baton::worker {

struct ClusterClientOptions {
  // HOST:PORT of routers; a name stands for all its addresses, which are looked up again and again.
  // May be empty: routers announce themselves (Announce).
  std::vector<std::string> routers;
  std::shared_ptr<const rpc::ClusterSecurity> security;  // May be null.
  v1::WorkerInfo self;                                   // As it registers, data_address included.
  int64_t heartbeat_interval_ms = 500;
  // A router that no name leads to any more is followed until it has been silent for so long.
  int64_t forget_router_ms = 5000;
  int64_t resolve_interval_ms = 5000;
  NameResolver::Lookup lookup = net::NumericAddresses;
  DataPlane* data_plane = nullptr;  // Not owned; outlives the client.

  struct Status {
    absl::Status readiness;  // OK: takes requests.
    v1::WorkerLoad load;
    bool draining = false;         // It takes nothing new and will leave.
    std::vector<uint64_t> linked;  // HeartbeatRequest.linked.
  };
  // Asked before every heartbeat, on the client's thread; must not wait for a peer.
  std::function<Status()> status;
  // Called on the client's thread whenever the other members of this worker's chain or decode
  // service change: of one name only the newest incarnation, those that came last first. Each has
  // been tried to connect to. May be null.
  std::function<void(const std::vector<PeerWorker>&)> on_members;
  // Called on the client's thread when an endpoint stands, can't be opened, or does not stand any
  // more: what runs over it ends now. May be null.
  std::function<void()> on_endpoints;
  // An operator asks this worker to drain, through a router (Cluster.Drain). Called on the client's
  // thread, again with every heartbeat until the worker leaves. May be null.
  std::function<void()> on_drain;
  // How many routers refuse this worker for now (another model, a rank that is taken ...); they are
  // asked again. Called on the client's thread whenever the number changes. May be null.
  std::function<void(int routers)> on_refused;
  // Routers refuse this worker for good (its description contradicts itself, it speaks another
  // protocol) and none holds it: it can never join, so the process should end with this status.
  // Called once, on the client's thread, which then does nothing more.
  std::function<void(const absl::Status&)> on_rejected;
};

// Heartbeats go every interval, and at once when there is news: a router says that the members have
// changed, or ReportSoon was called.
//
// One thread of its own, and to each router a connection of its own, so that a slow or dead router
// delays nothing else. It survives the routers: running requests go on, and the worker registers
// again, with a backoff of at most two seconds, until it is heard.
//
// An endpoint belongs to one incarnation of a peer: a new incarnation is a new PeerId. Those to the
// other stages of this worker's chain are opened when routers list them, any other when it is
// wanted, and kept until it is found dead.
class ClusterClient {
 public:
  explicit ClusterClient(ClusterClientOptions options);
  ~ClusterClient() { Stop(); }

  void Start();
  // Ends the thread and the calls to routers. Leaves the endpoints to the data plane's owner.
  // Idempotent; any thread but the client's.
  void Stop();

  // Any thread:

  // Held by a router.
  bool registered() const { return registered_; }
  // Why not, and for how long, for people; empty if it is.
  std::string WhyNotRegistered() const;
  // A router says that it is at this numeric HOST:PORT.
  void Announce(const std::string& router_address) const {
    PostNews(RouterAnnounced{router_address});
  }
  // The endpoint of one incarnation of a peer; nullopt: not connected.
  std::optional<PeerId> Find(const InstanceRef& instance) const;
  // Wants endpoints to these peers. True: one of them is being opened, and on_endpoints will be
  // called; else Find has each, or it can't be reached at the moment.
  bool Want(const std::vector<InstanceRef>& peers) const;
  // Every endpoint of decode services (for lease heartbeats of stages) or of prefill stages.
  std::vector<PeerId> Endpoints(Role role) const;
  // What `status` says has changed: the router should hear of it now.
  void ReportSoon() const { PostNews(StatusChanged{}); }
  // A router has sent a prompt of these keys: the others should hear of it, and of the load.
  void ReportPrompt(uint64_t router_incarnation, TakenPrompts::Keys prefix_keys) const;
  // This worker will leave: no endpoint is opened that nothing waits for.
  void StopConnecting() const { Post(StopAsked{}); }
  // What the routers know of this worker's drain, once its status says that it drains.
  DrainNews drain_news() const;
  // Deregisters: a last heartbeat ends this worker's lease at every router. Returns when those that
  // answer have heard it, and after `limit_ms` in any case; only Stop may follow. Any thread but
  // the client's.
  void Leave(int64_t limit_ms);
  // Forward DataPlane::SetPeerErrorHandler here: the endpoint may be opened anew after an interval.
  void OnPeerFailed(PeerId peer) { Post(PeerFailed{peer}); }

 private:
  // For the ends of what was begun; of notices and news, which peers can send at will, a full
  // mailbox may lose one: an interval makes up for it.
  void Post(MembershipEvent event) const;
  void PostNews(MembershipEvent event) const;

  struct Lease {
    uint64_t router = 0;
    uint64_t incarnation = 0;  // The router's; 0: it has not answered yet.
    std::shared_ptr<RouterRpcs::LeaseCall> call;
    // The heartbeat that is not answered yet:
    bool draining = false;
    bool busy = false;
    uint64_t last_prompt = 0;  // TakenPrompts::News.
  };

  // Loop thread.
  void HandleOne(const MembershipEvent& event);
  void Tell(const LeaseGranted& granted);
  void Tell(const LeaseEnded& ended);
  void TellFailure(const Lease& lease, const absl::Status& status);
  void OnResponse(uint64_t lease, const v1::LeaseResponse& response);
  void OnAnswer(uint64_t lease, const v1::HeartbeatResponse& answer);
  void Perform(const ResolveRouterName& action) { resolver_.Resolve(action.name); }
  void Perform(const OpenLease& action);
  void Perform(const SendHeartbeat& action);
  void Perform(const CloseLease& action);
  void Perform(const ForgetRouter& action);
  void Perform(const LookUpPeer& action);
  void Perform(const ConnectPeers& action);
  void Perform(const PeerStands& action);
  void Perform(const PeerUnreachable& action);
  void Perform(const PeerLost& action);
  void Perform(const TellPeers& action);
  void Perform(const BeginDrain&) {
    if (options_.on_drain) options_.on_drain();
  }
  void Perform(const TooManyRouters& action);
  void Perform(const RejectWorker& action) { options_.on_rejected(action.status); }

  const ClusterClientOptions options_;
  Memberships core_;
  mutable SerialEvents<MembershipEvent> events_{
      [this](const MembershipEvent& event) { HandleOne(event); }};
  std::map<uint64_t, std::unique_ptr<RouterRpcs>> routers_;
  std::map<uint64_t, Lease> leases_;   // By the core's number; loop thread.
  std::set<InstanceRef> unreachable_;  // Logged already.
  int refusing_ = 0;                   // Routers; told already.
  std::atomic<bool> registered_{false};
  std::atomic<bool> shared_{false};  // By several routers.
  mutable TakenPrompts taken_;

  mutable Mutex mutex_;
  DrainNews drain_news_ ABSL_GUARDED_BY(mutex_);
  std::optional<Unregistered> unregistered_ ABSL_GUARDED_BY(mutex_);
  std::map<InstanceRef, PeerEndpoint> endpoints_ ABSL_GUARDED_BY(mutex_);
  mutable std::set<InstanceRef> opening_ ABSL_GUARDED_BY(mutex_);  // Wanted, and not answered yet.
  // Who asks again and again for a peer that can't be reached is told so at once.
  std::map<InstanceRef, int64_t> refused_until_us_ ABSL_GUARDED_BY(mutex_);

  NameResolver resolver_{options_.lookup,
                         [this](const std::string& name, NameResolver::Addresses addresses) {
                           Post(RouterNameResolved{name, std::move(addresses)});
                         }};
  mutable EventLoop loop_{"baton-cluster"};  // Last: its thread uses the rest.
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CLUSTER_CLIENT_H_
