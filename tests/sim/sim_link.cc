#include "tests/sim/sim_link.h"

#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/links/core/group_rendezvous.h"
#include "tests/sim/link_intruders.h"
#include "tests/sim/sim_wiring.h"

namespace baton::sim {
namespace {

constexpr int64_t kRefusalReadUs = 1'000'000;

}  // namespace

SimLink::SimLink(World& world, const Topology& topology, StageGroups& groups, SimGroup& group,
                 int node, const Options& options, Callbacks callbacks)
    : world_(world),
      topology_(topology),
      groups_(groups),
      group_(group),
      node_(node),
      options_(options),
      member_(options.place.member()),
      callbacks_(std::move(callbacks)),
      core_(options.place, topology.times.chain),
      witness_(world, options.place, topology.times.chain),
      alarm_(world, node, options.alarm, [this] { events_.Raise(links::LinkTick{}); }),
      stale_(world, node) {}

// ---- What member 0 says ----

void SimLink::HearHello(uint64_t call, const links::Hello& hello) {
  if (hello.members[static_cast<size_t>(member_)].instance != self()) {
    return world_.BreakCall(call);  // Its former life's.
  }
  events_.Raise(links::HelloArrived{call, hello});
  if (!core_.Stands(call) || !world_.Strikes(&NetworkFaults::nonsense)) return;
  events_.Raise(AnotherLeader(world_, hello));
  events_.Raise(NonsenseOn(world_, call, hello));
}

void SimLink::HearGroup(uint64_t call, const Rendezvous::Message& message) {
  if (core_.Stands(call)) group_.OnMessage(message);
}

void SimLink::HearWork(uint64_t call, uint64_t epoch, std::function<void()> take) {
  const links::WorkHeard heard{call, epoch, absl::OkStatus()};
  if (options_.keeps_work) stale_.Keep(heard);
  arriving_ = std::move(take);
  events_.Raise(heard);
  arriving_ = nullptr;
}

void SimLink::TellStale(const links::LinkEvent& event) {
  std::vector<links::LinkAction> actions;
  core_.Handle(event, world_.now_us(), actions);
  if (actions.empty()) return;
  world_.Violate(absl::StrCat(self().id, ": what comes of an older epoch has an effect"));
}

// ---- What the link decides ----

void SimLink::Handle(const links::LinkEvent& event) {
  std::vector<links::LinkAction> actions;
  core_.Handle(event, world_.now_us(), actions);
  witness_.Saw(event, actions, core_);
  for (const links::LinkAction& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
  alarm_.Set(core_.NextDeadlineUs());
}

void SimLink::Perform(const links::TryEpoch& action) {
  const absl::Status status = callbacks_.try_epoch(action.hello);
  if (status.ok()) {
    stale_.TellLater(options_.keeps_work ? "stale order" : "stale group",
                     [this](const auto& event) { TellStale(event); });
  }
  events_.Raise(links::EpochTried{status});
}

void SimLink::Perform(const links::FormGroup& action) {
  const uint64_t epoch = action.hello.epoch;
  const auto tell = [this, call = action.link](const links::WiringEvent& event) {
    if (core_.Stands(call)) Tell(call, "group word", event);
  };
  SimGroup::Callbacks callbacks;
  callbacks.say = [this, tell, epoch](const Rendezvous::Entry& entry) {
    tell(links::GroupEntryHeard{member_, epoch, entry});
  };
  callbacks.connected = [this, tell, epoch] { tell(links::GroupConnectedHeard{member_, epoch}); };
  callbacks.formed = [this, epoch](const absl::Status& status) {
    const links::GroupFormed event{epoch, status};
    stale_.Keep(event, options_.keeps_work ? stale_.kKept : 3 * stale_.kKept);
    events_.Raise(event);
  };
  tell(links::GroupJoinHeard{member_, epoch});
  group_.Join(links::GroupOf(options_.place, action.hello), std::move(callbacks));
}

void SimLink::Perform(const links::SendReady& action) {
  const StageGroups::Key key = StageGroups::KeyOf(topology_, node_, action.epoch);
  groups_.CheckReady(key, options_.place.self.tensor_rank.rank);
  const links::StageReady ready{member_, action.epoch, options_.page_count};
  const uint64_t newest = callbacks_.newest_generation ? callbacks_.newest_generation() : 0;
  world_.SendOnCall<Process>(action.link, node_, "link ready", [ready, newest](Process& peer) {
    peer.wiring()->HearReady(ready, newest);
  });
}

void SimLink::Perform(const links::SendPong&) {
  const links::StageHeard heard{member_, core_.hello().epoch};
  world_.Send<Process>(node_, NodeOf(core_.hello().members.front().instance.id), "pong",
                       [heard](Process& peer) { peer.wiring()->Hear(heard); });
}

void SimLink::Perform(const links::TakeWork&) { std::exchange(arriving_, nullptr)(); }

void SimLink::Perform(const links::RefuseLink& action) {
  world_.Trace(node_, absl::StrCat("REFUSED: ", action.status.message()));
  if (action.newest_epoch == 0) return world_.BreakCall(action.link);
  Tell(action.link, "link refused",
       links::StageRefused{member_, action.epoch, action.newest_epoch});
  // gRPC delivers what was written before the end; here the end must not overtake it.
  world_.After(node_, kRefusalReadUs, "refused link ends",
               [this, call = action.link] { world_.BreakCall(call); });
}

void SimLink::Tell(uint64_t call, const char* label, const links::WiringEvent& event) {
  world_.SendOnCall<Process>(call, node_, label,
                             [event](Process& peer) { peer.wiring()->Hear(event); });
}

void SimLink::Report(uint64_t epoch, const char* label, const prefill::PlannerEvent& report) {
  if (core_.standing() == 0 || epoch == 0 || epoch != core_.hello().epoch) return;
  world_.SendOnCall<Process>(core_.standing(), node_, label,
                             [member = member_, epoch, report](Process& peer) {
                               peer.wiring()->HearReport(member, epoch, report);
                             });
}

}  // namespace baton::sim
