#include "tests/sim/follower_process.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/content.h"
#include "tests/sim/decode_process.h"
#include "tests/sim/link_intruders.h"
#include "tests/sim/router_process.h"

namespace baton::sim {
namespace {

constexpr int64_t kRefusalReadUs = 1'000'000;
constexpr double kKept = 0.1;
constexpr size_t kKeptMost = 6;

}  // namespace

FollowerProcess::FollowerProcess(World& world, const Topology& topology, StageGroups& groups,
                                 int node, uint64_t incarnation)
    : DecodeRank(world, topology, groups, node, incarnation,
                 {nullptr, nullptr,
                  [this](const DecodeSteps::Ended& ended) { HandleStage(ResultOf(ended)); }}),
      link_(DecodePlaceOf(topology, node, self_), topology.times.chain),
      link_witness_(world, DecodePlaceOf(topology, node, self_), topology.times.chain) {
  membership_ = std::make_unique<WorkerMembership>(
      world, topology.times, node, RouterProcess::Describe(topology, self_),
      [this] {
        const bool draining = drain_ != nullptr && drain_->draining();
        router::WorkerLoad load;
        load.free_pages = topology_.PagesOf(node_) - stage_.held_pages() - grants_.held_pages();
        return WorkerMembership::Status{!draining, load, draining};
      },
      [this] { CheckNeighbours(); });
  drain_ = std::make_unique<WorkerDrain>(
      world, topology, node, *membership_,
      WorkerDrain::Hooks{[](int64_t) {}, [this](std::string& why_not) { return AtRest(why_not); }});
  membership_->Start();
  kv_.Start();
}

// ---- What the first process tells it ----

// By way of the lease table's time line, where the grant must be in force before a writer hears of
// it.
void FollowerProcess::Take(const KvGrant& grant) {
  if (const absl::Status status = grants_.Grant(grant); !status.ok()) return FailEpoch(status);
  kv_.After([this, epoch = epoch_, slot = grant.slot, generation = grant.generation] {
    OnReport(epoch, prefill::MemberGranted{member_, slot, generation});
  });
}

void FollowerProcess::Take(const prefill::RevokeKv& revoke) {
  const absl::Status status = grants_.Revoke(revoke.slot, revoke.generation);
  if (!status.ok()) FailEpoch(status);
}

void FollowerProcess::OnLease(const LeaseEvent& event) {
  OnReport(epoch_, prefill::KvHeard{member_, event});
}

void FollowerProcess::OnReport(uint64_t epoch, const prefill::PlannerEvent& report) {
  if (link_.standing() == 0 || epoch == 0 || epoch != link_.hello().epoch) return;
  world_.SendOnCall<DecodeProcess>(link_.standing(), node_, "report",
                                   [member = member_, epoch, report](DecodeProcess& peer) {
                                     peer.ReceiveReport(member, epoch, report);
                                   });
}

const Oracle::Sequence* FollowerProcess::SequenceOfGrant(uint64_t generation) const {
  const int leader = LeaderNode();
  if (!world_.alive(leader) || members_.empty() ||
      world_.incarnation(leader) != members_.front().incarnation) {
    return nullptr;
  }
  return static_cast<DecodeProcess*>(world_.process(leader))->SequenceOfGrant(generation);
}

// ---- The link ----

void FollowerProcess::HandleLink(const links::LinkEvent& event) {
  std::vector<links::LinkAction> actions;
  link_.Handle(event, world_.now_us(), actions);
  link_witness_.Saw(event, actions, link_);
  for (const auto& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
  ScheduleLinkTick();
}

void FollowerProcess::ScheduleLinkTick() {
  if (link_.NextDeadlineUs() == kNeverUs) return;
  const int64_t due_us = std::max(link_.NextDeadlineUs(), world_.now_us());
  if (due_us >= link_tick_us_) return;
  link_tick_us_ = due_us;
  world_.After(node_, due_us - world_.now_us(), "link tick", [this, due_us] {
    if (link_tick_us_ == due_us) link_tick_us_ = kNeverUs;
    link_events_.Raise(links::LinkTick{});
  });
}

void FollowerProcess::CallBroken(uint64_t call) {
  membership_->CallBroken(call);
  group_.CallBroken(call);
  link_events_.Raise(links::LinkGone{call});
}

void FollowerProcess::ReceiveHello(uint64_t call, const links::Hello& hello) {
  if (hello.members[static_cast<size_t>(member_)].instance != self_) {
    return world_.BreakCall(call);  // Its former life's.
  }
  link_events_.Raise(links::HelloArrived{call, hello});
  if (!link_.Stands(call) || !world_.Strikes(&NetworkFaults::nonsense)) return;
  link_events_.Raise(AnotherLeader(world_, hello));
  link_events_.Raise(NonsenseOn(world_, call, hello));
}

void FollowerProcess::ReceiveOrder(uint64_t call, const SimOrder& order, bool nonsense) {
  const links::WorkHeard heard{call, epoch_, absl::OkStatus()};
  KeepForLater(heard);
  const bool taken = link_.Stands(call) && epoch_ != 0;
  arriving_ = order;
  link_events_.Raise(heard);
  arriving_.reset();
  if (!nonsense || !taken || !world_.violation().empty()) return;
  // A stage that ends its epoch says so in its own time.
  world_.After(node_, 10, "nonsense is refused", [this, call, epoch = epoch_] {
    if (epoch_ != epoch || epoch == 0 || !link_.Stands(call)) return;
    world_.Violate(absl::StrCat(self_.id, " goes on after an order that makes no sense"));
  });
}

void FollowerProcess::Perform(const links::TakeWork&) {
  const SimOrder order = *std::exchange(arriving_, std::nullopt);
  std::visit([this](const auto& o) { Take(o); }, order);
}

void FollowerProcess::ReceiveGroup(uint64_t call, const Rendezvous::Message& message) {
  if (link_.Stands(call)) group_.OnMessage(message);
}

void FollowerProcess::Perform(const links::TryEpoch& action) {
  const absl::Status status = Begin(action.hello);
  if (status.ok()) ScheduleStale();
  link_events_.Raise(links::EpochTried{status});
}

void FollowerProcess::Perform(const links::DropEpoch& action) {
  EndEpoch(action.why);
  grants_.EndEpoch();
}

void FollowerProcess::Tell(uint64_t call, const char* label, const links::WiringEvent& event) {
  world_.SendOnCall<DecodeProcess>(
      call, node_, label, [event](DecodeProcess& peer) { peer.ReceiveFromFollower(event); });
}

void FollowerProcess::Perform(const links::FormGroup& action) {
  const auto tell = [this, call = action.link](const links::WiringEvent& event) {
    if (link_.Stands(call)) Tell(call, "group word", event);
  };
  const auto formed = [this](const links::GroupFormed& event) {
    KeepForLater(event);
    link_events_.Raise(event);
  };
  JoinAsMember(group_, DecodePlaceOf(topology_, node_, self_), action.hello, tell, formed);
}

void FollowerProcess::Perform(const links::SendReady& action) {
  groups_.CheckReady(StageGroups::KeyOf(topology_, node_, action.epoch), rank_.rank);
  const links::StageReady ready{member_, action.epoch, topology_.PagesOf(node_)};
  world_.SendOnCall<DecodeProcess>(action.link, node_, "link ready",
                                   [ready, newest = grants_.newest_generation()](
                                       DecodeProcess& peer) { peer.ReceiveReady(ready, newest); });
}

void FollowerProcess::Perform(const links::SendPong&) {
  const links::StageHeard heard{member_, link_.hello().epoch};
  world_.Send<DecodeProcess>(node_, LeaderNode(), "pong",
                             [heard](DecodeProcess& peer) { peer.ReceiveFromFollower(heard); });
}

void FollowerProcess::Perform(const links::RefuseLink& action) {
  world_.Trace(node_, absl::StrCat("REFUSED: ", action.status.message()));
  if (action.newest_epoch == 0) return world_.BreakCall(action.link);
  Tell(action.link, "link refused",
       links::StageRefused{member_, action.epoch, action.newest_epoch});
  // gRPC delivers what was written before the end; here the end must not overtake it.
  world_.After(node_, kRefusalReadUs, "refused link ends",
               [this, call = action.link] { world_.BreakCall(call); });
}

// ---- What comes of an epoch that is over ----

void FollowerProcess::KeepForLater(const links::LinkEvent& event) {
  if (stale_link_.size() < kKeptMost && world_.random().Chance(kKept)) {
    stale_link_.push_back(event);
  }
}

void FollowerProcess::ScheduleStale() {
  for (const links::LinkEvent& event : std::exchange(stale_link_, {})) {
    const int64_t latest_us = world_.random().Chance(0.5) ? 5000 : 3'000'000;
    world_.After(node_, world_.random().Between(0, latest_us), "stale order", [this, event] {
      std::vector<links::LinkAction> actions;
      link_.Handle(event, world_.now_us(), actions);
      if (actions.empty()) return;
      world_.Violate(absl::StrCat(self_.id, ": an order of an older epoch has an effect"));
    });
  }
}

}  // namespace baton::sim
