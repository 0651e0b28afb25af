// A worker's memberships at all routers that it finds, and its endpoints: which RPCs to send, which
// peers to connect to, who the members of its chain or decode service are. Event in, actions out;
// deterministic.
//
// Every router has a membership of its own (router_membership.h): a call on which this worker
// registers and sends heartbeats.
// Together they make
//  - the members of the worker's own chain or decode service: all that any router lists, of one
//    name the one that was heard of last. Who is in no list is not told any more, and nothing else
//    comes of it: what runs between two processes ends by their links and endpoints alone, so that
//    a router that starts anew takes nothing away;
//  - the endpoints (endpoints.h): at once to those of the listed workers that requests may need,
//    which are all in a small cluster; to any other worker when it is wanted. The first router
//    that knows it says where it is (LookUpPeer). Rejected: addresses in every ticket, which a
//    chain's plans would carry to all its members again and again;
//  - the verdict: a router that refuses this worker is asked again, since those that it does not
//    fit may leave or give way. Only what no change of others can mend is the end: a description
//    that contradicts itself, or no version of the protocol in common. Then a worker that some
//    router holds or refuses for now goes on; one that only routers which refuse it for good have
//    answered can never join.
//
// One router found at two addresses is joined once: it knows by which calls the worker is held. A
// router that no source names any more is forgotten after a grace of silence: one that drains still
// serves its streams, and its leases must not run out.
#ifndef SERVICES_WORKER_CORE_MEMBERSHIPS_H_
#define SERVICES_WORKER_CORE_MEMBERSHIPS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/worker/core/drain.h"
#include "services/worker/core/endpoints.h"
#include "services/worker/core/peer_worker.h"
#include "services/worker/core/router_membership.h"
#include "services/worker/core/router_sources.h"

namespace baton::worker {

// Routers that one worker is a member of, and the most that --router-address may name.
inline constexpr int kMaxRouters = 16;

struct MembershipOptions {
  PeerWorker self;
  std::vector<std::string> router_names;      // HOST:PORT, to be resolved.
  std::vector<std::string> router_addresses;  // Numeric HOST:PORT.
  MembershipTimes times;
  int64_t resolve_us = 5'000'000;  // How often names are resolved.
  // A router's announcement counts for so long; it repeats it well within.
  int64_t announced_us = 20'000'000;
};

// ---- Events ----
struct RouterNameResolved {
  std::string name;
  absl::StatusOr<std::vector<std::string>> addresses;  // Numeric HOST:PORT.
};
struct RouterAnnounced {  // A router has called and said where it is.
  std::string address;
};
// These four: on lease calls that are open; on others they are ignored.
struct LeaseGranted {
  uint64_t lease = 0;
  uint64_t router_incarnation = 0;
  int64_t heartbeat_interval_us = 0;
};
struct HeartbeatAnswered {
  uint64_t lease = 0;
  std::vector<PeerWorker> members;  // Itself among them; none: those that the call told last.
  bool draining = false;            // What that heartbeat said.
  bool drain = false;               // An operator has asked the router to drain this worker.
  int needed_requests = 0;  // Requests of this router that need this worker while it drains.
};
struct HeartbeatWanted {
  uint64_t lease = 0;
};
struct LeaseEnded {
  uint64_t lease = 0;
  absl::Status status;
};
struct StatusChanged {};  // Report to the routers now.
struct LoadChanged {};    // Or changes: report it soon, if several routers share this worker.
struct Leaves {};         // The next heartbeats are the last ones; no registrations follow.
struct StopAsked {};      // It will leave: no endpoint is opened unasked.
struct PeersWanted {      // Something is to be sent to them; each is answered once (below).
  std::vector<InstanceRef> peers;
};
struct PeerLookedUp {  // Answers LookUpPeer.
  uint64_t router = 0;
  InstanceRef peer;
  absl::StatusOr<PeerWorker> found;
};
struct PeersConnected {  // Answers ConnectPeers, at once.
  struct Opened {
    PeerWorker peer;
    uint64_t endpoint = 0;  // The transport's number: never 0, never used again.
  };
  std::vector<Opened> standing;
  std::vector<PeerWorker> failed;
};
struct PeerFailed {  // An endpoint is dead.
  uint64_t endpoint = 0;
};
struct MembershipTick {};
using MembershipEvent =
    std::variant<RouterNameResolved, RouterAnnounced, LeaseGranted, HeartbeatAnswered,
                 HeartbeatWanted, LeaseEnded, StatusChanged, LoadChanged, Leaves, StopAsked,
                 PeersWanted, PeerLookedUp, PeersConnected, PeerFailed, MembershipTick>;

// ---- Actions ----
struct ResolveRouterName {
  std::string name;
};
struct OpenLease {      // Says who this worker is.
  uint64_t router = 0;  // Names the router until ForgetRouter.
  std::string address;
  uint64_t lease = 0;  // Names the call until it ends, or CloseLease. Grows from call to call.
  std::vector<uint64_t> held_by;  // Routers that hold this worker by other calls.
};
struct SendHeartbeat {  // With what the worker says of itself: ready, load, drains.
  uint64_t lease = 0;
  bool leaving = false;  // The last one.
};
struct CloseLease {
  uint64_t lease = 0;
  // The router is late, if it is not dead, and ends the call once it hears of another one. Broken
  // by this worker, the call would look as if the worker had died.
  bool left_to_router = false;
};
struct ForgetRouter {  // What is asked of it may be cancelled; the answers mean nothing any more.
  uint64_t router = 0;
  std::string address;
};
struct ConnectPeers {
  std::vector<PeerWorker> peers;
};
struct LookUpPeer {  // Ask the router where that life of a worker is.
  uint64_t router = 0;
  InstanceRef peer;
  int64_t timeout_us = 0;
};
// What has become of a peer that was wanted, or is a member.
struct PeerStands {
  InstanceRef peer;
  PeerEndpoint endpoint;
};
struct PeerUnreachable {
  InstanceRef peer;
};
// Its endpoint stood and does no more: what runs over it ends now.
struct PeerLost {
  InstanceRef peer;
};
// The other members of this worker's chain or decode service that routers list; one life of each
// name, those that came last first. Each has been tried to connect to.
struct TellPeers {
  std::vector<PeerWorker> peers;
};
struct BeginDrain {};    // An operator asks for it, through a router; again with every heartbeat.
struct TooManyRouters {  // Once for each address that is left out.
  std::string address;
};
struct RejectWorker {  // It can never join, wherever it asks; nothing follows.
  absl::Status status;
};
using MembershipAction =
    std::variant<ResolveRouterName, OpenLease, SendHeartbeat, CloseLease, ForgetRouter, LookUpPeer,
                 ConnectPeers, PeerStands, PeerUnreachable, PeerLost, TellPeers, BeginDrain,
                 TooManyRouters, RejectWorker>;

// For people: "the router at A refuses this worker: ...".
struct Unregistered {
  std::string why;
  int64_t since_us = 0;
};

class Memberships {
 public:
  Memberships(MembershipOptions options, int64_t now_us);

  void Handle(const MembershipEvent& event, int64_t now_us, std::vector<MembershipAction>& actions);
  // When MembershipTick is due next.
  int64_t NextDeadlineUs(int64_t now_us) const;

  // Some router holds this worker and answered its last RPC.
  bool registered() const { return routers_joined() > 0; }
  int routers_joined() const;  // That do.
  int routers_refusing() const;
  // Why no router holds this worker; nullopt if one does.
  std::optional<Unregistered> unregistered() const;
  DrainNews drain_news() const;
  bool left() const;  // Every router that answers has heard the last heartbeat.
  const RouterMembership* Find(uint64_t router) const;            // nullptr: forgotten.
  const std::vector<PeerWorker>& peers() const { return told_; }  // As told last.
  const Endpoints& endpoints() const { return endpoints_; }
  // One membership for each router, whatever happens. For tests; defined in testing/.
  absl::Status CheckInvariants() const;

 private:
  using Routers = std::map<uint64_t, RouterMembership>;

  void On(const RouterNameResolved& event);
  void On(const RouterAnnounced& event);
  void On(const LeaseGranted& event);
  void On(const HeartbeatAnswered& event);
  void On(const HeartbeatWanted& event);
  void On(const LeaseEnded& event);
  void On(const StatusChanged& event);
  void On(const LoadChanged& event);
  void On(const Leaves& event);
  void On(const StopAsked&) { stop_asked_ = true; }
  void On(const PeersWanted& event);
  void On(const PeerLookedUp& event);
  void On(const PeersConnected& event);
  void On(const PeerFailed& event);
  void On(const MembershipTick&) {}

  RouterMembership* Of(uint64_t lease);  // nullptr: it is not open any more.
  void Failed(RouterMembership& router);
  void CloseLeaseOf(const RouterMembership& router);
  void AskAliases();
  void FollowSources();
  bool MakeRoom();
  void Forget(Routers::iterator router);
  void Judge();
  // memberships_peers.cc
  bool ConnectsTo(const PeerWorker& peer) const;
  std::vector<PeerWorker> Members() const;
  void KeepMembers();
  const PeerWorker* Listed(const InstanceRef& peer) const;
  void LookUp(const InstanceRef& peer);
  void Connect(const PeerWorker& peer);
  void GiveUp(const InstanceRef& peer);
  void SendWhatIsDue();
  void Ask(uint64_t id, RouterMembership& router);
  template <typename Action>
  void Emit(Action action) {
    actions_->emplace_back(std::in_place_type<Action>, std::move(action));
  }

  const MembershipOptions options_;
  RouterSources sources_;
  Routers routers_;
  uint64_t last_router_ = 0;
  uint64_t last_lease_ = 0;
  std::set<std::string> left_out_;  // Addresses, for lack of room; told already.
  Endpoints endpoints_;
  std::vector<PeerWorker> connecting_;        // Found while an event is handled.
  std::map<InstanceRef, uint64_t> arrivals_;  // When each was first listed, as a number.
  uint64_t last_arrival_ = 0;
  std::vector<PeerWorker> told_;
  bool rejected_ = false;
  bool leaves_ = false;
  bool stop_asked_ = false;
  const int64_t began_us_;

  // Valid while an event is handled.
  int64_t now_us_ = 0;
  std::vector<MembershipAction>* actions_ = nullptr;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CORE_MEMBERSHIPS_H_
