// The first process's way to the others of its simulated decode service: the real wiring over calls
// that break, orders and reports. Plays services/links/chain_wiring.
#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/decode_process.h"
#include "tests/sim/follower_process.h"
#include "tests/sim/link_intruders.h"

namespace baton::sim {
namespace {

constexpr int64_t kRefusedUs = 100;
constexpr double kKept = 0.1;
constexpr size_t kKeptMost = 6;

}  // namespace

void DecodeProcess::ScheduleWiringTick() {
  const int64_t next_us = wiring_.NextDeadlineUs();
  if (next_us == kNeverUs) return;
  const int64_t due_us = std::max(next_us, world_.now_us());
  if (due_us >= wiring_tick_us_) return;
  wiring_tick_us_ = due_us;
  world_.After(node_, due_us - world_.now_us(), "wiring tick", [this, due_us] {
    if (wiring_tick_us_ == due_us) wiring_tick_us_ = kNeverUs;
    const auto wall_clock_us = static_cast<uint64_t>(world_.wall_clock_us(node_));
    wiring_events_.Raise(links::WiringTick{wall_clock_us});
  });
}

void DecodeProcess::HandleWiring(const links::WiringEvent& event) {
  std::vector<links::WiringAction> actions;
  wiring_.Handle(event, world_.now_us(), actions);
  wiring_witness_.Saw(event, actions, wiring_);
  for (const auto& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
  ScheduleWiringTick();
}

void DecodeProcess::LinkBroken(uint64_t call) {
  for (const auto& [rank, link] : links_) {
    if (link != call) continue;
    wiring_events_.Raise(
        links::StageLinkEnded{rank, wiring_.epoch(), absl::UnavailableError("the link broke")});
    return;
  }
}

// ---- What the wiring decides ----

void DecodeProcess::OnMembers() {
  CheckNeighbours();
  const links::ChainPlace place = DecodePlaceOf(topology_, node_, self_);
  wiring_events_.Raise(links::MembersSeen{WithImpostors(world_, place, membership_->peers())});
}

void DecodeProcess::Perform(const links::TryOwnEpoch& action) {
  const absl::Status status = Begin(action.hello);
  if (status.ok()) ScheduleStale();
  wiring_events_.Raise(links::OwnEpochTried{status});
}

void DecodeProcess::Perform(const links::OpenLinks& action) {
  for (const worker::PeerWorker& member : action.members) {
    const int rank = member.pp_rank * topology_.decode_ranks + member.tensor_rank.rank;
    const uint64_t call = world_.OpenCall(node_, NodeOf(member.instance.id));
    if (call == 0) {
      world_.After(
          node_, kRefusedUs, "connection refused", [this, rank, epoch = action.hello.epoch] {
            wiring_events_.Raise(
                links::StageLinkEnded{rank, epoch, absl::UnavailableError("nobody listens")});
          });
      continue;
    }
    links_[rank] = call;
    world_.SendOnCall<FollowerProcess>(
        call, node_, "hello",
        [call, hello = action.hello](FollowerProcess& peer) { peer.ReceiveHello(call, hello); });
  }
}

void DecodeProcess::Perform(const links::FormOwnGroup& action) {
  JoinAsLeader(group_, DecodePlaceOf(topology_, node_, self_), action.hello, wiring_events_);
}

void DecodeProcess::Perform(const links::TellGroup& action) {
  if (action.member == 0) return group_.OnMessage(action.message);
  const auto link = links_.find(action.member);
  if (link == links_.end()) return;  // The member has no link.
  const uint64_t call = link->second;
  world_.SendOnCall<FollowerProcess>(call, node_, "group word",
                                     [call, message = action.message](FollowerProcess& peer) {
                                       peer.ReceiveGroup(call, message);
                                     });
}

// Beside the calls' losses: two a second on every link would leave no service standing.
void DecodeProcess::Perform(const links::PingStages& action) {
  for (const auto& [rank, call] : links_) {
    if (!world_.CallOpen(call)) continue;
    const int node = topology_.DecodeNode(topology_.DecodeOf(node_), rank);
    const uint64_t next_done = planner_.plans_done(rank / topology_.decode_ranks + 1);
    world_.Send<FollowerProcess>(node_, node, "ping",
                                 [ping = links::PingHeard{call, action.sequence, next_done}](
                                     FollowerProcess& peer) { peer.ReceivePing(ping); });
  }
}

void DecodeProcess::Perform(const links::CloseLinks&) {
  for (const auto& [rank, call] : std::exchange(links_, {})) world_.BreakCall(call);
}

void DecodeProcess::Perform(const links::ReportChainUp& action) {
  StageGroups::Key key = StageGroups::KeyOf(topology_, node_, action.epoch);
  for (key.stage = 0; key.stage < topology_.decode_stages; ++key.stage) groups_.CheckUp(key);
  freed_.Reset();
  prefill::ChainUp up{action.epoch, topology_.decode_stages, action.page_count};
  for (int stage = 0; stage < topology_.decode_stages; ++stage) {
    up.stage_layers.push_back(topology_.DecodeLayers(stage).size());
  }
  up.ranks = topology_.decode_ranks;
  up.followers.assign(members_.begin() + 1, members_.end());
  up.newest_generation = newest_generation_;
  HandlePlanner(up);
  membership_->ReportSoon();
}

void DecodeProcess::Perform(const links::ReportChainDown& action) {
  // One of a service that nobody connects to never comes up.
  if (topology_.first_router_stands && !topology_.IsLonely(node_)) {
    world_.Violate(absl::StrCat("a router's death parts the ranks of ", self_.id, ": ",
                                action.status.message()));
  }
  world_.Trace(node_, absl::StrCat("CHAIN DOWN: ", action.status.message()));
  EndEpoch(action.status);
  HandlePlanner(prefill::ChainDown{action.status});
  membership_->ReportSoon();
}

void DecodeProcess::Perform(const links::PassReport& action) {
  const prefill::PlannerEvent report = *std::exchange(in_hand_, std::nullopt);
  const int said_by = std::visit(
      [ranks = topology_.decode_ranks](const auto& event) {
        if constexpr (requires { event.member; }) return event.member;
        if constexpr (requires { event.stage; }) return event.stage * ranks + event.rank;
        return -1;
      },
      report);
  if (said_by != action.stage * topology_.decode_ranks + action.rank) {
    world_.Violate(self_.id + " takes one member's report for another's");
  }
  HandlePlanner(report);
}

void DecodeProcess::Perform(const links::TellOwnStage& action) {
  HandleStage(prefill::NextStageDone{action.epoch, planner_.plans_done(1)});
}

// ---- Orders ----

// The same order with one thing wrong, mostly by the least there is.
namespace {

void Spoil(Random& random, const Topology& topology, int node, KvGrant& grant) {
  LayerRange& layers = grant.writers.back().layers;
  switch (random.Below(8)) {
    case 0:
      grant.slot = static_cast<uint32_t>(topology.max_running);
      return;
    case 1:
      grant.generation = 0;
      return;
    case 2:
      grant.pages.clear();
      return;
    case 3:
      grant.pages.back() = topology.PagesOf(node);
      return;
    case 4:
      grant.pages.push_back(grant.pages.front());
      return;
    case 5:
      layers.end = layers.begin;
      return;
    case 6:
      grant.first_page = static_cast<int>(grant.pages.size());
      return;
    default:
      layers.end = topology.layers + 1;
  }
}

void Spoil(Random& /*random*/, const Topology& /*topology*/, int /*node*/,
           prefill::RevokeKv& revoke) {
  ++revoke.generation;
}

void Spoil(Random& random, const Topology& /*topology*/, int /*node*/, prefill::Plan& plan) {
  if (plan.items.empty() || random.Chance(0.5)) {
    plan.number += random.Chance(0.5) ? 1 : -1;
  } else {
    ++plan.items.back().token_begin;
  }
}

}  // namespace

void DecodeProcess::SendAll(const SimOrder& order) {
  for (int member = 1; member < topology_.decode_members(); ++member) SendOrder(member, order);
}

void DecodeProcess::SendOrder(int member, SimOrder order) {
  if (!wiring_.up()) return;
  const uint64_t call = links_.at(member);
  const bool nonsense = world_.Strikes(&NetworkFaults::order_garbled);
  if (nonsense) {
    const int node = topology_.DecodeNode(topology_.DecodeOf(node_), member);
    std::visit([&](auto& o) { Spoil(world_.random(), topology_, node, o); }, order);
  }
  world_.SendOnCall<FollowerProcess>(
      call, node_, "order",
      [call, order, nonsense](FollowerProcess& peer) { peer.ReceiveOrder(call, order, nonsense); });
  if (nonsense || !world_.Strikes(&NetworkFaults::plan_repeat)) return;
  world_.SendOnCall<FollowerProcess>(
      call, node_, "order again",
      [call, order](FollowerProcess& peer) { peer.ReceiveOrder(call, order, /*nonsense=*/true); });
}

// ---- What followers say ----

void DecodeProcess::ReceiveFromFollower(const links::WiringEvent& event) {
  KeepForLater(event);
  wiring_events_.Raise(event);
}

void DecodeProcess::ReceiveReady(const links::StageReady& ready, uint64_t newest_generation) {
  newest_generation_ = std::max(newest_generation_, newest_generation);
  ReceiveFromFollower(ready);
}

void DecodeProcess::ReceiveReport(int member, uint64_t epoch, const prefill::PlannerEvent& report) {
  in_hand_ = report;
  ReceiveFromFollower(links::ReportHeard{member, epoch});
  in_hand_.reset();
}

// What comes of an older epoch has no effect, whatever it is.
void DecodeProcess::KeepForLater(const links::WiringEvent& event) {
  if (stale_wiring_.size() < kKeptMost && world_.random().Chance(kKept)) {
    stale_wiring_.push_back(event);
  }
}

void DecodeProcess::ScheduleStale() {
  for (const links::WiringEvent& event : std::exchange(stale_wiring_, {})) {
    const int64_t latest_us = world_.random().Chance(0.5) ? 5000 : 3'000'000;
    world_.After(node_, world_.random().Between(0, latest_us), "stale word", [this, event] {
      const std::pair before(wiring_.epoch(), wiring_.up());
      std::vector<links::WiringAction> actions;
      wiring_.Handle(event, world_.now_us(), actions);
      if (actions.empty() && std::pair(wiring_.epoch(), wiring_.up()) == before) return;
      world_.Violate(absl::StrCat(self_.id, ": a follower's word of an older epoch has an effect"));
    });
  }
}

}  // namespace baton::sim
