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
constexpr double kOrderAfterEnd = 0.3;
constexpr size_t kKeptMost = 6;

decode::FollowerLimits LimitsOf(const Topology& topology, int node) {
  decode::FollowerLimits limits;
  limits.rank = topology.DecodeRankOf(node);
  limits.kv_heads = topology.kv_heads;
  limits.layers = topology.layers;
  limits.page_size = topology.page_size;
  limits.page_count = topology.PagesOf(node);
  limits.slots = topology.max_running;
  limits.max_context_tokens = topology.max_context_tokens;
  limits.vocab_size = kVocabulary;
  return limits;
}

}  // namespace

FollowerProcess::FollowerProcess(World& world, const Topology& topology, StageGroups& groups,
                                 int node, uint64_t incarnation)
    : world_(world),
      topology_(topology),
      groups_(groups),
      node_(node),
      self_{topology.InstanceId(world.name(node), incarnation), incarnation},
      rank_(topology.DecodeRankOf(node)),
      core_(LimitsOf(topology, node)),
      witness_(world, topology, self_.id, rank_),
      link_(DecodePlaceOf(topology, node, self_), topology.times.chain),
      link_witness_(world, DecodePlaceOf(topology, node, self_), topology.times.chain),
      memory_(topology.PagesOf(node), topology.layers, topology.page_size,
              BitsOf(topology.kv_heads, rank_)),
      group_(world, topology, groups, node),
      steps_(world, topology, groups, node, self_.id, memory_, group_,
             {nullptr,
              [this](const DecodeSteps::Ended& ended) {
                FreeWhatSteppedOut();
                core_events_.Raise(decode::FollowerStepEnded{ended.step, ended.status});
              }}),
      kv_(world, topology, node, self_, memory_,
          {[this](const LeaseEvent& event) { core_events_.Raise(decode::LeaseHeard{event}); },
           [this](uint64_t generation) { return SequenceOf(generation); },
           [this](int page) { return steps_.Uses(page); }}) {
  membership_ = std::make_unique<WorkerMembership>(
      world, topology.times, node, RouterProcess::Describe(topology, self_, Role::kDecode),
      [this] {
        const bool draining = drain_ != nullptr && drain_->draining();
        router::WorkerLoad load;
        load.free_pages = topology_.PagesOf(node_) - core_.held_pages();
        return WorkerMembership::Status{!draining, load, draining};
      },
      [] {});
  drain_ = std::make_unique<WorkerDrain>(
      world, topology, node, *membership_,
      WorkerDrain::Hooks{[](int64_t) {}, [this](std::string& why_not) { return AtRest(why_not); }});
  membership_->Start();
  kv_.Start();
}

// ---- The core ----

void FollowerProcess::HandleCore(const decode::FollowerEvent& event) {
  if (!world_.violation().empty()) return;
  witness_.Before(event, nonsense_);
  std::vector<decode::FollowerAction> actions;
  core_.Handle(event, actions);
  witness_.After(actions, core_);
  if (!world_.violation().empty()) return;
  FreePages(witness_.TakeFreed());
  for (const decode::FollowerAction& action : actions) {
    std::visit([this](const auto& act) { Perform(act); }, action);
  }
}

// By way of the lease table's time line, where the grant must be in force before a writer hears of
// it.
void FollowerProcess::Perform(const decode::TellGranted& action) {
  kv_.After([this, epoch = epoch_, action] {
    Report(epoch, decode::FollowerGranted{rank_.rank, action.slot, action.generation});
  });
}

void FollowerProcess::Perform(const decode::TellLease& action) {
  LeaseEvent event = action.event;
  if (auto* committed = std::get_if<KvCommitted>(&event)) committed->first_token.reset();
  Report(epoch_, decode::FollowerHeard{rank_.rank, std::move(event)});
}

void FollowerProcess::Perform(const decode::FailEpoch& action) {
  world_.Trace(node_, absl::StrCat("FAILS THE EPOCH: ", action.status.message()));
  link_events_.Raise(links::StageFailed{action.status});
}

void FollowerProcess::FreePages(const std::vector<int>& pages) {
  for (const int page : pages) {
    if (steps_.Uses(page)) {
      stepping_.insert(page);
      continue;
    }
    if (const std::string used = memory_.Free(page); !used.empty()) {
      world_.Violate(absl::StrCat("I1: ", self_.id, ": ", used));
    }
  }
}

void FollowerProcess::FreeWhatSteppedOut() {
  const std::set<int> pages = std::exchange(stepping_, {});
  FreePages({pages.begin(), pages.end()});
}

const Oracle::Sequence* FollowerProcess::SequenceOf(uint64_t generation) const {
  const int leader = LeaderNode();
  if (!world_.alive(leader) || ranks_.empty() ||
      world_.incarnation(leader) != ranks_.front().incarnation) {
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
  if (hello.members[static_cast<size_t>(rank_.rank)].instance != self_) {
    return world_.BreakCall(call);  // Its former life's.
  }
  link_events_.Raise(links::HelloArrived{call, hello});
  if (!link_.Stands(call) || !world_.Strikes(&NetworkFaults::nonsense)) return;
  link_events_.Raise(AnotherLeader(world_, hello));
  link_events_.Raise(NonsenseOn(world_, call, hello));
}

void FollowerProcess::ReceiveOrder(uint64_t call, const decode::Order& order, bool nonsense) {
  const links::WorkHeard heard{call, epoch_, absl::OkStatus()};
  KeepForLater(heard);
  arriving_ = order;
  nonsense_ = nonsense;
  if (!nonsense && link_.Stands(call)) last_order_ = order;
  link_events_.Raise(heard);
  nonsense_ = false;
  arriving_.reset();
}

void FollowerProcess::Perform(const links::TakeWork&) {
  core_events_.Raise(decode::OrderHeard{*std::exchange(arriving_, std::nullopt)});
}

void FollowerProcess::ReceiveGroup(uint64_t call, const Rendezvous::Message& message) {
  if (link_.Stands(call)) group_.OnMessage(message);
}

void FollowerProcess::Perform(const links::TryEpoch& action) {
  if (!core_.may_begin()) {
    link_events_.Raise(
        links::EpochTried{absl::UnavailableError("pages of the last epoch are in use")});
    return;
  }
  if (memory_.AnyHeld() || !steps_.idle()) {
    world_.Violate(absl::StrCat(self_.id, " begins an epoch while its pages are in use"));
  }
  epoch_ = action.hello.epoch;
  ranks_.clear();
  for (const KvWriter& rank : action.hello.members) ranks_.push_back(rank.instance);
  steps_.Begin(epoch_, ranks_);
  ScheduleStale();
  core_events_.Raise(decode::EpochBegan{});
  link_events_.Raise(links::EpochTried{absl::OkStatus()});
}

void FollowerProcess::Perform(const links::DropEpoch& action) {
  group_.Leave(action.why);
  core_events_.Raise(decode::EpochOver{});
  // One that comes all the same is not obeyed.
  if (last_order_.has_value() && world_.random().Chance(kOrderAfterEnd)) {
    core_events_.Raise(decode::OrderHeard{*last_order_});
  }
  last_order_.reset();
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
  const links::StageReady ready{rank_.rank, action.epoch, topology_.PagesOf(node_)};
  world_.SendOnCall<DecodeProcess>(action.link, node_, "link ready",
                                   [ready, newest = core_.newest_generation()](
                                       DecodeProcess& peer) { peer.ReceiveReady(ready, newest); });
}

void FollowerProcess::Perform(const links::SendPong&) {
  const links::StageHeard heard{rank_.rank, link_.hello().epoch};
  world_.Send<DecodeProcess>(node_, LeaderNode(), "pong",
                             [heard](DecodeProcess& peer) { peer.ReceiveFromFollower(heard); });
}

void FollowerProcess::Perform(const links::RefuseLink& action) {
  world_.Trace(node_, absl::StrCat("REFUSED: ", action.status.message()));
  if (action.newest_epoch == 0) return world_.BreakCall(action.link);
  Tell(action.link, "link refused",
       links::StageRefused{rank_.rank, action.epoch, action.newest_epoch});
  // gRPC delivers what was written before the end; here the end must not overtake it.
  world_.After(node_, kRefusalReadUs, "refused link ends",
               [this, call = action.link] { world_.BreakCall(call); });
}

void FollowerProcess::Report(uint64_t epoch, const decode::Event& event) {
  if (link_.standing() == 0 || epoch != link_.hello().epoch) return;
  world_.SendOnCall<DecodeProcess>(link_.standing(), node_, "report",
                                   [rank = rank_.rank, epoch, event](DecodeProcess& peer) {
                                     peer.ReceiveReport(rank, epoch, event);
                                   });
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

absl::Status FollowerProcess::CheckInvariants() const {
  BATON_RETURN_IF_ERROR(membership_->CheckInvariants());
  return kv_.leases().CheckInvariants();
}

bool FollowerProcess::AtRest(std::string& why_not) const {
  const LeaseTable& leases = kv_.leases();
  if (core_.AtRest() && leases.AtRest() && core_.held_pages() == 0) return true;
  why_not = absl::StrCat("a follower holds ", core_.held_pages(), " pages, grants ",
                         leases.active_grants(), " draining ", leases.draining());
  return false;
}

}  // namespace baton::sim
