// A worker's memberships at all routers that it finds, and what they make together: which RPCs to
// send, which peers to keep endpoints to, what the worker is told of its peers. Event in, actions
// out; deterministic.
//
// Every router has a membership of its own (router_membership.h): registration, heartbeats, watch,
// and the version of its view that has been applied. Together they make
//  - the peers: all that any router lists (peer_table.h). What only a silent router lists counts
//    until another one has held this worker for a whole grace, so that the last view outlives all
//    routers, and a router that starts anew, which knows few at first, takes nothing away;
//  - the verdict: a router that refuses this worker is asked again, since those that it does not
//    fit may leave or give way. Only what no change of others can mend is the end: a description
//    that contradicts itself, or no version of the protocol in common. Then a worker that some
//    router holds or refuses for now goes on; one that only routers which refuse it for good have
//    answered can never join.
// A worker that a living router has given up was dead to its peers: they have let go of their
// endpoints to it, and with one end of a connection the other may be gone, which the transport
// notices late or when something is sent. So it connects to all of them anew before it tells that
// router, with which it registers again, that it is connected; unless another router has held it
// all the while. A router that has died says nothing of the kind: who registers with its next life
// keeps its endpoints, as its peers do.
// A peer may be given up and join again between two views, so that none is without it: it joined
// with another version of the view then, and the endpoint to it is opened anew, unless another
// router has listed it all the while.
//
// One router found at two addresses is known by its incarnation and joined once. A router that no
// source names any more is forgotten after a grace of silence: one that drains still serves its
// streams, and its leases must not run out.
#ifndef SERVICES_WORKER_CORE_MEMBERSHIPS_H_
#define SERVICES_WORKER_CORE_MEMBERSHIPS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/worker/core/drain.h"
#include "services/worker/core/peer_table.h"
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
struct RegisterAnswered {
  uint64_t router = 0;
  absl::Status status;
  uint64_t router_incarnation = 0;
  int64_t heartbeat_interval_us = 0;
};
struct HeartbeatAnswered {
  uint64_t router = 0;
  absl::Status status;
  uint64_t view_version = 0;
  std::vector<PeerWorker> workers;  // If that is not the version which the heartbeat named.
  bool draining = false;            // What that heartbeat said.
  bool drain = false;               // An operator has asked the router to drain this worker.
  int needed_requests = 0;  // Requests of this router that need this worker while it drains.
};
struct WatchNoticed {
  uint64_t router = 0;
};
struct WatchEnded {
  uint64_t router = 0;
};
struct StatusChanged {};  // Report to the routers now.
struct Leaves {};         // The next heartbeats are the last ones; no registrations follow.
struct StopAsked {};      // It will leave: no endpoint is opened any more.
struct PeersConnected {   // Answers ConnectPeers.
  struct Opened {
    InstanceRef peer;
    uint64_t endpoint = 0;  // The transport's number: never 0, never used again.
  };
  std::vector<Opened> standing;
  std::vector<InstanceRef> failed;
};
struct PeerFailed {  // An endpoint is dead; it may come before the answer that tells of it.
  uint64_t endpoint = 0;
};
struct MembershipTick {};
using MembershipEvent = std::variant<RouterNameResolved, RouterAnnounced, RegisterAnswered,
                                     HeartbeatAnswered, WatchNoticed, WatchEnded, StatusChanged,
                                     Leaves, StopAsked, PeersConnected, PeerFailed, MembershipTick>;

// ---- Actions ----
struct ResolveRouterName {
  std::string name;
};
struct SendRegister {
  uint64_t router = 0;  // Names the router until ForgetRouter.
  std::string address;
  int64_t timeout_us = 0;  // Then it has failed: the router is dead or stopped.
};
struct SendHeartbeat {  // With what the worker says of itself: ready, load, drains.
  uint64_t router = 0;
  uint64_t router_incarnation = 0;
  uint64_t view_version = 0;
  std::vector<uint64_t> unconnected;  // Incarnations in that view without the endpoint they need.
  bool leaving = false;               // The last one.
  int64_t timeout_us = 0;
};
struct OpenWatch {
  uint64_t router = 0;
};
struct ForgetRouter {  // Its RPCs may be cancelled; their ends mean nothing any more.
  uint64_t router = 0;
  std::string address;
};
struct ConnectPeers {
  std::vector<PeerWorker> peers;
};
struct CloseEndpoint {
  uint64_t endpoint = 0;
};
// Before the actions that rely on it.
struct EndpointsChanged {
  bool lost = false;  // One that stood does no more: what runs over it ends now.
};
// Every live worker but this one; one incarnation of each, those that a router lists before those
// that are only kept, the newest first. Without the versions with which they joined, which are of
// views.
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
using MembershipAction = std::variant<ResolveRouterName, SendRegister, SendHeartbeat, OpenWatch,
                                      ForgetRouter, ConnectPeers, CloseEndpoint, EndpointsChanged,
                                      TellPeers, BeginDrain, TooManyRouters, RejectWorker>;

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
  bool Knows(const InstanceRef& peer) const { return peers_.Holds(peer); }
  // Those that stand, as far as is known here.
  const std::map<InstanceRef, PeerEndpoint>& endpoints() const { return peers_.endpoints(); }
  // What must hold whatever happens: one membership for each router, applied views connected.
  absl::Status CheckInvariants() const;

 private:
  static constexpr int64_t kNeverRenewedUs = -1;
  using Routers = std::map<uint64_t, RouterMembership>;

  void On(const RouterNameResolved& event);
  void On(const RouterAnnounced& event);
  void On(const RegisterAnswered& event);
  void On(const HeartbeatAnswered& event);
  void On(const WatchNoticed& event);
  void On(const WatchEnded& event);
  void On(const StatusChanged& event);
  void On(const Leaves& event);
  void On(const StopAsked&) { stop_asked_ = true; }
  void On(const PeersConnected& event);
  void On(const PeerFailed& event);
  void On(const MembershipTick&) {}

  RouterMembership* Of(uint64_t router);
  void Registered(RouterMembership& router, const RegisterAnswered& event);
  // Whether `is_so` holds for a router other than this one that answers.
  template <typename Predicate>
  bool AnotherRouter(const RouterMembership& router, Predicate is_so) const {
    return std::any_of(routers_.begin(), routers_.end(), [&](const auto& entry) {
      return &entry.second != &router && entry.second.answers() && is_so(entry.second);
    });
  }
  bool AnotherHeldIt(const RouterMembership& router) const;
  bool AnotherListedIt(const RouterMembership& router,
                       const RouterMembership::Rejoined& rejoined) const;
  void ConnectAnewToTheRejoined();
  void Close(const std::vector<uint64_t>& endpoints);  // That stood.
  void ConnectAnew();
  void Failed(RouterMembership& router);
  void AskAliasesOf(const RouterMembership& router);
  void FollowSources();
  bool MakeRoom();
  void Forget(Routers::iterator router);
  bool AnotherIsSettled(const RouterMembership& router) const;
  void DropTheSilent();
  void Judge();
  void KeepPeers();
  void Connect();
  void TellRoutersOf(const InstanceRef& peer);
  std::vector<const RouterMembership*> Views() const;
  void TellPeersIfNew();
  void SendWhatIsDue();
  template <typename Action>
  void Emit(Action action) {
    actions_->emplace_back(std::in_place_type<Action>, std::move(action));
  }

  const MembershipOptions options_;
  RouterSources sources_;
  Routers routers_;
  uint64_t last_router_ = 0;
  std::set<std::string> left_out_;  // Addresses, for lack of room; told already.
  PeerTable peers_;
  bool peers_changed_ = false;
  std::vector<PeerWorker> told_;
  bool rejected_ = false;
  bool leaves_ = false;
  bool stop_asked_ = false;
  int64_t renewed_us_ = kNeverRenewedUs;  // All endpoints, last.
  const int64_t began_us_;

  // Valid while an event is handled.
  int64_t now_us_ = 0;
  std::vector<MembershipAction>* actions_ = nullptr;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CORE_MEMBERSHIPS_H_
