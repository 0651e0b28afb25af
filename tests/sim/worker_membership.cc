#include "tests/sim/worker_membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/router_process.h"
#include "tests/sim/topology.h"

namespace baton::sim {
namespace {

constexpr char kRouters[] = "routers:30001";
constexpr int64_t kRefusedUs = 100;
// Share of dying endpoints that die within a millisecond of their opening.
constexpr double kDiesEarly = 0.2;
// Numbers of addresses without a process: more than are followed, or than announcements are kept.
constexpr int kStrangersNamed = 20;
constexpr int kStrangersAnnounced = 70;
// A router announces itself so often before its announcement counts no more.
constexpr int kAnnouncements = 4;

// The heartbeat interval a router asks for: none, a shorter one, or a longer one, which is ignored.
// Each life of it asks for the same.
int64_t IntervalOf(uint64_t router_incarnation, int64_t heartbeat_us) {
  switch ((router_incarnation >> 1) % 4) {  // They are odd.
    case 0:
      return heartbeat_us / 2;
    case 1:
      return heartbeat_us - 1;
    case 2:
      return 2 * heartbeat_us;
    default:
      return 0;
  }
}

worker::PeerWorker ToPeer(const router::WorkerInfo& info) {
  worker::PeerWorker peer;
  peer.instance = info.instance;
  peer.role = info.role;
  peer.grpc_address = info.grpc_address;
  peer.data_address = info.data_address;
  peer.layers = info.layers;
  peer.chain_id = info.chain_id;
  peer.pp_rank = info.pp_rank;
  peer.pp_size = info.pp_size;
  peer.decode_id = info.decode_id;
  peer.decodes = info.decodes;
  peer.tensor_rank = info.tensor_rank;
  return peer;
}

// A quarter of all workers' lives know where the first router is, whatever names lead to.
worker::MembershipOptions CoreOptions(const World& world, const router::WorkerInfo& info,
                                      const Timings& times) {
  worker::MembershipOptions options;
  options.self = ToPeer(info);
  options.router_names = {kRouters};
  if (info.instance.incarnation % 8 == 1) options.router_addresses = {world.name(0)};
  options.times = times.membership;
  options.resolve_us = options.announced_us = times.resolve_us;
  return options;
}

}  // namespace

WorkerMembership::WorkerMembership(World& world, const Timings& times, int node,
                                   router::WorkerInfo info, std::function<Status()> status,
                                   std::function<void()> on_change)
    : world_(world),
      times_(times),
      node_(node),
      info_(std::move(info)),
      status_(std::move(status)),
      on_change_(std::move(on_change)),
      core_(CoreOptions(world, info_, times), world.now_us()),
      witness_(world, CoreOptions(world, info_, times)) {}

void WorkerMembership::Start() {
  events_.Raise(worker::MembershipTick{});
  if (world_.dns().announced) HearAnnouncements();
  LookAfterEndpoints();
}

void WorkerMembership::HandleOne(const worker::MembershipEvent& event) {
  std::vector<worker::MembershipAction> actions;
  core_.Handle(event, world_.now_us(), actions);
  witness_.Saw(event, actions, core_);
  for (const worker::MembershipAction& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
  alarm_.Set(core_.NextDeadlineUs(world_.now_us()));
  if (left_ && core_.left()) std::exchange(left_, nullptr)();
}

void WorkerMembership::Leave(bool unneeded, std::function<void()> left) {
  left_ = std::move(left);
  unneeded_ = unneeded;
  events_.Raise(worker::Leaves{});
}

// ---- Calls to routers ----

uint64_t WorkerMembership::LeaseOf(uint64_t call) const {
  for (const auto& [id, lease] : leases_) {
    if (lease.call == call) return id;
  }
  return 0;
}

uint64_t WorkerMembership::OpenCallTo(uint64_t router) {
  const int node = node_of_.at(router);
  return node < 0 ? 0 : world_.OpenCall(node_, node);
}

void WorkerMembership::CallBroken(uint64_t call) {
  if (const auto found = lookups_.find(call); found != lookups_.end()) {
    const Lookup lookup = found->second;
    lookups_.erase(found);
    return LookupFailed(lookup);
  }
  LeaseEnded(call, absl::UnavailableError("the call broke"));
}

void WorkerMembership::Perform(const worker::OpenLease& action) {
  node_of_[action.router] = NodeOf(action.address);
  const uint64_t call = OpenCallTo(action.router);
  if (call == 0) {
    return world_.After(node_, kRefusedUs, "connection refused", [this, lease = action.lease] {
      events_.Raise(worker::LeaseEnded{lease, absl::UnavailableError("connection refused")});
    });
  }
  leases_[action.lease] = {call, action.router};
  world_.SendOnCall<RouterProcess>(call, node_, "register",
                                   [call, info = info_, open = action](RouterProcess& router) {
                                     router.AskLease({call, info, open.held_by, open.lease});
                                   });
}

void WorkerMembership::Registered(uint64_t call, uint64_t router_incarnation) {
  const uint64_t lease = LeaseOf(call);
  if (lease == 0) return;
  leases_[lease].granted = true;
  gave_up_asking_.erase(node_of_.at(leases_[lease].router));
  const int64_t interval_us = IntervalOf(router_incarnation, times_.membership.heartbeat_us);
  events_.Raise(worker::LeaseGranted{lease, router_incarnation, interval_us});
}

void WorkerMembership::Perform(const worker::SendHeartbeat& action) {
  const Status status = status_();
  Lease& lease = leases_.at(action.lease);
  lease.draining = status.draining;
  lease.leaving = action.leaving;
  // In no guaranteed order.
  const std::vector<uint64_t> linked(status.linked.rbegin(), status.linked.rend());
  world_.SendOnCall<RouterProcess>(
      lease.call, node_, "heartbeat",
      [call = lease.call, leaving = action.leaving, status, linked](RouterProcess& router) {
        router.Heartbeat({call, status.ready, status.load, status.draining, leaving, linked});
      });
}

void WorkerMembership::HeartbeatAnswered(uint64_t call, const router::AnswerHeartbeat& answer) {
  const uint64_t lease = LeaseOf(call);
  if (lease == 0) return;
  worker::HeartbeatAnswered answered{
      lease, {}, leases_[lease].draining, answer.drain, answer.needed_requests};
  if (leases_[lease].leaving && unneeded_ && answer.needed_requests > 0) {
    world_.Violate(absl::StrCat(info_.instance.id, " leaves while ", answer.needed_requests,
                                " requests need it"));
  }
  for (const router::WorkerInfo& info : answer.workers) answered.members.push_back(ToPeer(info));
  events_.Raise(std::move(answered));
}

void WorkerMembership::HeartbeatWanted(uint64_t call) {
  if (const uint64_t lease = LeaseOf(call)) events_.Raise(worker::HeartbeatWanted{lease});
}

void WorkerMembership::LeaseEnded(uint64_t call, const absl::Status& status) {
  world_.CloseCall(call);
  left_calls_.erase(call);
  const uint64_t lease = LeaseOf(call);
  if (lease == 0) return;
  leases_.erase(lease);
  events_.Raise(worker::LeaseEnded{lease, status});
}

void WorkerMembership::Perform(const worker::CloseLease& action) {
  const auto found = leases_.find(action.lease);
  if (found == leases_.end()) return;  // No call could be opened.
  const Lease lease = found->second;
  if (!lease.granted) gave_up_asking_.insert(node_of_.at(lease.router));
  leases_.erase(found);
  if (action.left_to_router) {
    left_calls_[lease.call] = lease.router;
  } else {
    world_.BreakCall(lease.call);
  }
}

void WorkerMembership::Perform(const worker::ForgetRouter& action) {
  std::erase_if(lookups_, [&](const auto& entry) { return entry.second.router == action.router; });
  std::erase_if(left_calls_, [&](const auto& entry) {
    if (entry.second != action.router) return false;
    world_.BreakCall(entry.first);
    return true;
  });
  node_of_.erase(action.router);
}

void WorkerMembership::LookupFailed(const Lookup& lookup) {
  events_.Raise(worker::PeerLookedUp{lookup.router, lookup.peer,
                                     absl::UnavailableError("the router does not answer")});
}

void WorkerMembership::Perform(const worker::LookUpPeer& action) {
  const Lookup lookup{action.router, action.peer};
  const uint64_t call = OpenCallTo(action.router);
  if (call == 0) {
    return world_.After(node_, kRefusedUs, "connection refused",
                        [this, lookup] { LookupFailed(lookup); });
  }
  lookups_[call] = lookup;
  world_.After(node_, action.timeout_us, "rpc timeout", [this, call] {
    if (lookups_.contains(call)) CallBroken(call);
    world_.CloseCall(call);
  });
  const auto ask = [this, call, peer = action.peer] {
    world_.SendOnCall<RouterProcess>(
        call, node_, "find",
        [call, node = node_, peer](RouterProcess& router) { router.Find(call, node, peer); });
  };
  if (world_.Strikes(&NetworkFaults::connect_fail)) return;  // It hangs.
  if (!world_.Strikes(&NetworkFaults::connect_slow)) return ask();
  world_.After(node_, world_.random().Between(1000, action.timeout_us / 2), "asked late", ask);
}

void WorkerMembership::Found(uint64_t call, const absl::StatusOr<router::WorkerInfo>& found) {
  const auto asked = lookups_.find(call);
  if (asked == lookups_.end()) return;
  const Lookup lookup = asked->second;
  lookups_.erase(asked);
  absl::StatusOr<worker::PeerWorker> peer = absl::NotFoundError("it is not here");
  if (found.ok()) peer = ToPeer(*found);
  events_.Raise(worker::PeerLookedUp{lookup.router, lookup.peer, std::move(peer)});
}

// ---- What else the shell does ----

std::vector<std::string> WorkerMembership::RouterAddresses() const {
  const World::Dns& dns = world_.dns();
  std::vector<std::string> addresses;
  for (const int router : dns.listed) addresses.push_back(world_.name(router));
  for (const int router : dns.aliased) addresses.push_back(absl::StrCat("another-name-", router));
  const int strangers = !dns.strangers ? 0 : dns.announced ? kStrangersAnnounced : kStrangersNamed;
  for (int i = 0; i < strangers; ++i) addresses.push_back(absl::StrCat("10.0.0.", i));
  return addresses;
}

void WorkerMembership::Perform(const worker::ResolveRouterName& action) {
  const int64_t delay_us = world_.random().Between(100, world_.dns().slowest_us);
  world_.After(node_, delay_us, "name resolved", [this, name = action.name] {
    worker::RouterNameResolved resolved{name, absl::UnavailableError("DNS does not answer")};
    if (!world_.dns().fails) {
      resolved.addresses = world_.dns().announced ? std::vector<std::string>{} : RouterAddresses();
    }
    events_.Raise(std::move(resolved));
  });
}

// Runs now and repeatedly, for all routers that announce themselves, in no guaranteed order.
void WorkerMembership::HearAnnouncements() {
  const bool fails = world_.dns().fails;
  for (const std::string& address : fails ? std::vector<std::string>{} : RouterAddresses()) {
    if (NodeOf(address) >= 0 && !world_.alive(NodeOf(address))) continue;
    const int64_t delay_us = world_.random().Between(100, world_.dns().slowest_us);
    world_.After(node_, delay_us, "announcement",
                 [this, address] { events_.Raise(worker::RouterAnnounced{address}); });
  }
  world_.After(node_, times_.resolve_us / kAnnouncements, "announcements",
               [this] { HearAnnouncements(); });
}

void WorkerMembership::Perform(const worker::ConnectPeers& action) {
  worker::PeersConnected answer;
  for (const worker::PeerWorker& peer : action.peers) {
    const bool lonely = world_.lonely() == node_ || world_.lonely() == NodeOf(peer.instance.id);
    if (lonely || world_.Strikes(&NetworkFaults::connect_fail)) {
      answer.failed.push_back(peer);
    } else {
      answer.standing.push_back({peer, Open(peer.instance)});
    }
  }
  events_.Raise(std::move(answer));
}

bool WorkerMembership::Want(const std::vector<InstanceRef>& peers) {
  worker::PeersWanted wanted;
  bool opening = false;
  for (const InstanceRef& peer : peers) {
    if (FindPeer(peer).has_value()) continue;
    const auto refused = refused_until_us_.find(peer);
    if (refused != refused_until_us_.end() && world_.now_us() < refused->second) continue;
    opening = true;
    if (opening_.insert(peer).second) wanted.peers.push_back(peer);
  }
  if (!wanted.peers.empty()) {
    world_.After(node_, world_.random().Between(1, 60), "peers wanted",
                 [this, wanted = std::move(wanted)] { events_.Raise(wanted); });
  }
  return opening;
}

void WorkerMembership::Perform(const worker::PeerStands& action) {
  opening_.erase(action.peer);
  refused_until_us_.erase(action.peer);
  on_change_();
}

void WorkerMembership::Perform(const worker::PeerUnreachable& action) {
  opening_.erase(action.peer);
  refused_until_us_[action.peer] = world_.now_us() + times_.membership.heartbeat_us;
  on_change_();
}

void WorkerMembership::Perform(const worker::PeerLost& /*action*/) { on_change_(); }

uint64_t WorkerMembership::Open(const InstanceRef& peer) {
  const uint64_t endpoint = ++last_endpoint_;
  EndpointLifeOptions options{times_.endpoint_silence_us / 6, times_.endpoint_silence_us};
  const int64_t bytes_per_ms = world_.faults().bytes_per_ms;
  // An answer waits behind what the peer has under way, which is within the silence on the links
  // that Baton supports. Those here may be slower by far for their windows.
  if (bytes_per_ms > 0) options.silence_us += times_.window_us;
  // Half of what the link carries; where there is no limit no byte takes time.
  options.slowest_bytes_per_us = bytes_per_ms == 0 ? 1e6 : static_cast<double>(bytes_per_ms) / 2e3;
  live_.emplace(endpoint,
                SimEndpoint{peer, world_.now_us(), EndpointLife(options, world_.now_us())});
  if (world_.Strikes(&NetworkFaults::endpoint_silent)) FallSilent(endpoint);
  if (world_.Strikes(&NetworkFaults::endpoint_dies)) Break(endpoint, peer);
  return endpoint;
}

// The endpoint dies some time after it has been opened, though its peer lives: also before the
// answer to its opening is there. The transport's thread knows first; the loop is told in turn.
void WorkerMembership::Break(uint64_t endpoint, const InstanceRef& peer) {
  const bool early = world_.random().Chance(kDiesEarly);
  const int64_t late_us = world_.random().Between(early ? 1 : 1000, early ? 1000 : 8'000'000);
  world_.After(node_, late_us, "endpoint dies", [this, endpoint, peer] {
    if (world_.faults().endpoint_dies == 0) return;  // Healed meanwhile.
    const auto dead = live_.find(endpoint);
    if (dead == live_.end()) return;  // Closed.
    EndStuck(std::move(dead->second));
    live_.erase(dead);
    world_.Trace(node_, absl::StrCat("ENDPOINT to ", peer.id, " dies"));
    world_.After(node_, world_.random().Between(1, 60), "endpoint is dead",
                 [this, endpoint] { events_.Raise(worker::PeerFailed{endpoint}); });
  });
}

void WorkerMembership::Perform(const worker::TellPeers& /*action*/) { on_change_(); }

void WorkerMembership::Perform(const worker::RejectWorker& action) {
  world_.Violate(absl::StrCat(info_.instance.id, " is rejected: ", action.status.message()));
}

std::optional<uint64_t> WorkerMembership::FindPeer(const InstanceRef& instance) const {
  const auto found = core_.endpoints().Find(instance);
  return found.has_value() ? std::optional(found->endpoint) : std::nullopt;
}

}  // namespace baton::sim
