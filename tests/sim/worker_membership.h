// The worker side of membership: the core of services/worker as its shell runs it, with calls that
// break, names that are resolved by the world's DNS, and endpoints that stand or fail.
#ifndef TESTS_SIM_WORKER_MEMBERSHIP_H_
#define TESTS_SIM_WORKER_MEMBERSHIP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/serial_events.h"
#include "services/router/core/membership.h"
#include "services/router/core/router_core.h"
#include "services/worker/core/memberships.h"
#include "tests/sim/memberships_witness.h"
#include "tests/sim/sim_alarm.h"
#include "tests/sim/sim_endpoint.h"
#include "tests/sim/timings.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class WorkerMembership {
 public:
  struct Status {
    bool ready = false;
    router::WorkerLoad load;
    bool draining = false;
    std::vector<uint64_t> linked = {};
  };

  // `on_change`: members or endpoints are others now.
  WorkerMembership(World& world, const Timings& times, int node, router::WorkerInfo info,
                   std::function<Status()> status, std::function<void()> on_change);

  void Start();
  void CallBroken(uint64_t call);

  // Answers of a router.
  void Registered(uint64_t call, uint64_t router_incarnation);
  void HeartbeatWanted(uint64_t call);
  void HeartbeatAnswered(uint64_t call, const router::AnswerHeartbeat& answer);
  void LeaseEnded(uint64_t call, const absl::Status& status);
  void Found(uint64_t call, const absl::StatusOr<router::WorkerInfo>& found);

  // The status has changed.
  void ReportSoon() { events_.Raise(worker::StatusChanged{}); }
  // This worker was told to stop.
  void StopConnecting() { events_.Raise(worker::StopAsked{}); }

  // What a router that was asked to have this worker drained makes it do.
  void SetDrainHandler(std::function<void()> on_drain) { on_drain_ = std::move(on_drain); }
  worker::DrainNews drain_news() const { return core_.drain_news(); }
  // Deregisters; `left` is called when every router that answers has heard it. `unneeded`: no
  // router may still have a request that needs this worker.
  void Leave(bool unneeded, std::function<void()> left);
  bool leaves() const { return left_ != nullptr; }
  const std::string& id() const { return info_.instance.id; }

  // Sends a tensor message (World::SendData) over an endpoint that lives, as far as is known.
  template <typename Receiver>
  void SendOver(uint64_t endpoint, size_t bytes, const char* label, std::function<void()> read,
                std::function<void(Receiver&, bool corrupt)> place,
                std::function<void(absl::Status)> sent) {
    SimEndpoint& open = live_.at(endpoint);
    const uint64_t send = open.life.SendBegan(bytes, world_.now_us());
    const auto ended = [this, endpoint, send, sent = std::move(sent)](const absl::Status& status) {
      const auto found = live_.find(endpoint);
      if (found != live_.end()) found->second.life.SendEnded(send);
      sent(status);
    };
    if (open.silence != Silence::kNone) return Swallow(open, label, std::move(read), ended);
    world_.SendData<Receiver>(node_, NodeOf(open.peer.id), open.peer.incarnation, bytes, label,
                              std::move(read), std::move(place), ended);
  }
  // The answer to a ping over this endpoint.
  void Ponged(uint64_t endpoint, uint64_t sequence);

  // The members as the core has told them, in its order: the newest first.
  const std::vector<worker::PeerWorker>& peers() const { return core_.peers(); }
  // The endpoint to this incarnation of a peer, as the core knows.
  std::optional<uint64_t> FindPeer(const InstanceRef& instance) const;
  // As Peers::Want.
  bool Want(const std::vector<InstanceRef>& peers);
  std::map<InstanceRef, worker::PeerEndpoint> endpoints() const {
    return core_.endpoints().Standing();
  }
  // Whether anything that is sent to this endpoint of the core's can leave it.
  bool Lives(uint64_t endpoint) const { return live_.contains(endpoint); }
  // Whether the transport knows by now that nothing can.
  bool KnowsDead(uint64_t endpoint) const { return !live_.contains(endpoint); }
  // No name led any more to where it had asked the router on this node to join, and it let go of
  // that address before the answer came; nor has another address of it answered since.
  bool GaveUpAsking(int router) const { return gave_up_asking_.contains(router); }
  absl::Status CheckInvariants() const { return core_.CheckInvariants(); }

 private:
  struct Lease {
    uint64_t call = 0;
    uint64_t router = 0;
    bool granted = false;
    bool draining = false;  // What the heartbeat says that is under way.
    bool leaving = false;
  };
  struct Lookup {
    uint64_t router = 0;
    InstanceRef peer;
  };

  void HandleOne(const worker::MembershipEvent& event);
  uint64_t LeaseOf(uint64_t call) const;  // 0: it is over.
  uint64_t OpenCallTo(uint64_t router);   // 0: it is refused.
  void LookupFailed(const Lookup& lookup);
  void Perform(const worker::ResolveRouterName& action);
  void Perform(const worker::OpenLease& action);
  void Perform(const worker::SendHeartbeat& action);
  void Perform(const worker::CloseLease& action);
  void Perform(const worker::ForgetRouter& action);
  void Perform(const worker::LookUpPeer& action);
  void Perform(const worker::ConnectPeers& action);
  void Perform(const worker::PeerStands& action);
  void Perform(const worker::PeerUnreachable& action);
  void Perform(const worker::PeerLost& action);
  std::vector<std::string> RouterAddresses() const;
  void HearAnnouncements();
  uint64_t Open(const InstanceRef& peer);
  void Break(uint64_t endpoint, const InstanceRef& peer);
  // endpoints.cc
  void FallSilent(uint64_t endpoint);
  void Swallow(SimEndpoint& endpoint, const char* label, std::function<void()> read,
               std::function<void(absl::Status)> sent);
  void EndStuck(SimEndpoint endpoint);
  void LookAfterEndpoints();
  void Ping(uint64_t endpoint, uint64_t sequence);
  void Perform(const worker::TellPeers& action);
  void Perform(const worker::BeginDrain&) { on_drain_(); }
  void Perform(const worker::TooManyRouters&) {}
  void Perform(const worker::RejectWorker& action);

  World& world_;
  const Timings& times_;
  const int node_;
  const router::WorkerInfo info_;
  const std::function<Status()> status_;
  const std::function<void()> on_change_;
  worker::Memberships core_;
  MembershipsWitness witness_;
  SerialEvents<worker::MembershipEvent> events_{
      [this](const worker::MembershipEvent& event) { HandleOne(event); }};
  std::map<uint64_t, int> node_of_;          // Router -> node.
  std::map<uint64_t, Lease> leases_;         // By the core's number.
  std::map<uint64_t, Lookup> lookups_;       // By call.
  std::map<uint64_t, uint64_t> left_calls_;  // To be ended by their routers.
  std::set<int> gave_up_asking_;             // Nodes of routers.
  std::function<void()> on_drain_;
  // Those that live, or are silent; whatever the core knows of them.
  std::map<uint64_t, SimEndpoint> live_;
  std::set<InstanceRef> opening_;                    // Wanted, and not answered yet.
  std::map<InstanceRef, int64_t> refused_until_us_;  // As the client keeps it.
  uint64_t last_endpoint_ = 0;
  bool unneeded_ = false;
  std::function<void()> left_;  // Set: this worker leaves.
  SimAlarm alarm_{world_, node_, "membership tick",
                  [this] { events_.Raise(worker::MembershipTick{}); }};
};

}  // namespace baton::sim

#endif  // TESTS_SIM_WORKER_MEMBERSHIP_H_
