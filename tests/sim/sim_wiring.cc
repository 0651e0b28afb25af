#include "tests/sim/sim_wiring.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "services/links/core/group_rendezvous.h"
#include "tests/sim/link_intruders.h"
#include "tests/sim/sim_link.h"

namespace baton::sim {
namespace {

constexpr int64_t kRefusedUs = 100;

bool OnGroups(const links::WiringEvent& event) {
  return std::holds_alternative<links::GroupJoinHeard>(event) ||
         std::holds_alternative<links::GroupEntryHeard>(event) ||
         std::holds_alternative<links::GroupConnectedHeard>(event);
}

}  // namespace

SimWiring::SimWiring(World& world, const Topology& topology, StageGroups& groups, SimGroup& group,
                     int node, const links::WiringOptions& options, bool keeps_reports,
                     Callbacks callbacks)
    : world_(world),
      topology_(topology),
      groups_(groups),
      group_(group),
      node_(node),
      place_(options.place),
      keeps_reports_(keeps_reports),
      callbacks_(std::move(callbacks)),
      core_(options),
      witness_(world, options),
      alarm_(world, node, "wiring tick",
             [this] {
               const auto wall_clock_us = static_cast<uint64_t>(world_.wall_clock_us(node_));
               events_.Raise(links::WiringTick{wall_clock_us});
             }),
      stale_(world, node) {}

void SimWiring::OnMembers(std::vector<worker::PeerWorker> view) {
  events_.Raise(links::MembersSeen{WithImpostors(world_, place_, std::move(view))});
}

void SimWiring::BreakAt(int stage, int rank, const absl::Status& status) {
  const int member = stage * place_.ranks() + rank;
  if (member == 0) return events_.Raise(links::ChainFailed{status});
  events_.Raise(links::StageLinkEnded{member, core_.epoch(), status});
}

bool SimWiring::CallBroken(uint64_t call) {
  for (const auto& [member, link] : links_) {
    if (link != call) continue;
    const absl::Status status = absl::UnavailableError("the link broke");
    events_.Raise(links::StageLinkEnded{member, core_.epoch(), status});
    return true;
  }
  return false;
}

// ---- What members say ----

void SimWiring::Hear(const links::WiringEvent& event) {
  if (keeps_reports_ || OnGroups(event)) stale_.Keep(event);
  if (callbacks_.strikes && callbacks_.strikes(event)) return;
  events_.Raise(event);
}

void SimWiring::HearReady(const links::StageReady& ready, uint64_t newest_generation) {
  newest_generation_ = std::max(newest_generation_, newest_generation);
  Hear(ready);
}

void SimWiring::HearReport(int member, uint64_t epoch, const prefill::PlannerEvent& report) {
  arriving_ = report;
  Hear(links::ReportHeard{member, epoch});
  arriving_.reset();
}

void SimWiring::TellStale(const links::WiringEvent& event) {
  const std::pair before(core_.epoch(), core_.up());
  std::vector<links::WiringAction> actions;
  core_.Handle(event, world_.now_us(), actions);
  if (actions.empty() && std::pair(core_.epoch(), core_.up()) == before) return;
  world_.Violate(
      absl::StrCat(place_.self.instance.id, ": a member's word of an older epoch has an effect"));
}

// ---- What the wiring decides ----

void SimWiring::Handle(const links::WiringEvent& event) {
  std::vector<links::WiringAction> actions;
  core_.Handle(event, world_.now_us(), actions);
  witness_.Saw(event, actions, core_);
  for (const links::WiringAction& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
  alarm_.Set(core_.NextDeadlineUs());
}

void SimWiring::Perform(const links::TryOwnEpoch& action) {
  const absl::Status status = callbacks_.begin_own(action.hello);
  if (status.ok()) stale_.TellLater("stale word", [this](const auto& event) { TellStale(event); });
  events_.Raise(links::OwnEpochTried{status});
}

void SimWiring::Perform(const links::OpenLinks& action) {
  hello_ = action.hello;
  for (const worker::PeerWorker& worker : action.members) {
    const int member = worker.pp_rank * place_.ranks() + worker.tensor_rank.rank;
    const uint64_t call = world_.OpenCall(node_, NodeOf(worker.instance.id));
    if (call == 0) {
      world_.After(node_, kRefusedUs, "connection refused", [this, member, epoch = hello_.epoch] {
        const absl::Status status = absl::UnavailableError("the process does not listen");
        events_.Raise(links::StageLinkEnded{member, epoch, status});
      });
      continue;
    }
    links_[member] = call;
    world_.SendOnCall<Process>(call, node_, "hello", [call, hello = hello_](Process& peer) {
      peer.link()->HearHello(call, hello);
    });
  }
}

void SimWiring::Perform(const links::FormOwnGroup& action) {
  const uint64_t epoch = action.hello.epoch;
  SimGroup::Callbacks callbacks;
  callbacks.say = [this, epoch](const Rendezvous::Entry& entry) {
    events_.Raise(links::GroupEntryHeard{0, epoch, entry});
  };
  callbacks.connected = [this, epoch] { events_.Raise(links::GroupConnectedHeard{0, epoch}); };
  callbacks.formed = [this, epoch](const absl::Status& status) {
    events_.Raise(links::OwnGroupFormed{epoch, status});
  };
  events_.Raise(links::GroupJoinHeard{0, epoch});
  group_.Join(links::GroupOf(place_, action.hello), std::move(callbacks));
}

void SimWiring::Perform(const links::TellGroup& action) {
  if (action.member == 0) return group_.OnMessage(action.message);
  const auto link = links_.find(action.member);
  if (link == links_.end()) return;  // The member has no link.
  world_.SendOnCall<Process>(link->second, node_, "group word",
                             [call = link->second, message = action.message](Process& peer) {
                               peer.link()->HearGroup(call, message);
                             });
}

// Beside the calls' losses: two a second on every link would leave no chain standing.
void SimWiring::Perform(const links::PingStages& action) {
  for (const auto& [member, call] : links_) {
    if (!world_.CallOpen(call)) continue;
    const uint64_t next_done = callbacks_.plans_done(place_.StageOf(member) + 1);
    const links::PingHeard ping{call, action.sequence, next_done};
    const InstanceRef& peer = hello_.members[static_cast<size_t>(member)].instance;
    world_.Send<Process>(node_, NodeOf(peer.id), "ping",
                         [ping](Process& process) { process.link()->Raise(ping); });
  }
}

void SimWiring::Perform(const links::CloseLinks&) {
  for (const auto& [member, call] : std::exchange(links_, {})) world_.BreakCall(call);
}

void SimWiring::Perform(const links::ReportChainUp& action) {
  StageGroups::Key key = StageGroups::KeyOf(topology_, node_, action.epoch);
  for (key.stage = 0; key.stage < place_.stages; ++key.stage) groups_.CheckUp(key);
  callbacks_.on_up(action.epoch, action.page_count);
}

void SimWiring::Perform(const links::PassReport& action) {
  const int said_by = !arriving_.has_value() ? -1
                                             : std::visit(
                                                   [ranks = place_.ranks()](const auto& event) {
                                                     if constexpr (requires { event.member; })
                                                       return event.member;
                                                     if constexpr (requires { event.stage; })
                                                       return event.stage * ranks + event.rank;
                                                     return -1;
                                                   },
                                                   *arriving_);
  if (said_by != action.stage * place_.ranks() + action.rank) {
    return world_.Violate(place_.self.instance.id + " takes one member's report for another's");
  }
  callbacks_.on_report(*std::exchange(arriving_, std::nullopt));
}

}  // namespace baton::sim
