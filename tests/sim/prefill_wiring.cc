// How the real wiring and link of a chain are run in the simulation: calls that break, pings, and
// wall clocks that are set back. Plays services/links/chain_wiring and member_link.
#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/link_intruders.h"
#include "tests/sim/prefill_process.h"

namespace baton::sim {
namespace {

constexpr int64_t kRefusedUs = 100;
constexpr int64_t kLostUs = 10'000;  // From an endpoint's death to the end of its epoch.
constexpr int64_t kRefusalReadUs = 1'000'000;

}  // namespace

void PrefillProcess::ScheduleWiringTick() {
  const int64_t next_us = plans() ? wiring_->NextDeadlineUs() : link_->NextDeadlineUs();
  if (next_us == kNeverUs) return;
  const int64_t due_us = std::max(next_us, world_.now_us());
  if (due_us >= wiring_tick_us_) return;
  wiring_tick_us_ = due_us;
  world_.After(node_, due_us - world_.now_us(), "wiring tick", [this, due_us] {
    if (wiring_tick_us_ == due_us) wiring_tick_us_ = kNeverUs;
    if (plans()) {
      const auto wall_clock_us = static_cast<uint64_t>(world_.wall_clock_us(node_));
      wiring_events_.Raise(links::WiringTick{wall_clock_us});
    } else {
      link_events_.Raise(links::LinkTick{});
    }
  });
}

void PrefillProcess::CallBroken(uint64_t call) {
  membership_->CallBroken(call);
  group_.CallBroken(call);
  if (plans()) {
    for (const auto& [member, link] : links_) {
      if (link != call) continue;
      wiring_events_.Raise(
          links::StageLinkEnded{member, epoch_, absl::UnavailableError("the link broke")});
      return;
    }
    for (const auto& [attempt, prompt] : prompts_) {
      if (prompt.start_call != call) continue;
      Abort(attempt);
      return;
    }
  } else {
    link_events_.Raise(links::LinkGone{call});
  }
}

void PrefillProcess::FailEpoch(const absl::Status& status) {
  if (plans()) {
    wiring_events_.Raise(links::ChainFailed{status});
  } else {
    link_events_.Raise(links::StageFailed{status});
  }
}

// Begins the epoch on both links.
absl::Status PrefillProcess::Begin(const links::Hello& hello) {
  BATON_RETURN_IF_ERROR(
      neighbours_.Begin(hello, stage_.Quiet(), [this](const InstanceRef& instance) {
        const auto endpoint = membership_->FindPeer(instance);
        if (!endpoint.has_value()) membership_->Want({instance});
        return endpoint;
      }));
  if (memory_.AnyHeld()) {
    world_.Violate(absl::StrCat(self_.id, " begins an epoch while its pages are in use"));
  }
  memory_.FreeAll();
  inputs_.assign(static_cast<size_t>(topology_.activation_credits), nullptr);
  sums_.assign(inputs_.size(), {});
  outputs_.assign(static_cast<size_t>(prefill::OutputBuffers(topology_.plans_in_flight)), nullptr);
  epoch_ = hello.epoch;
  last_plan_ = last_input_ = 0;
  members_.clear();
  for (const KvWriter& member : hello.members) members_.push_back(member.instance);
  HandleStage(prefill::EpochBegan{epoch_});
  ScheduleStale();
  return absl::OkStatus();
}

void PrefillProcess::EndEpoch(const absl::Status& why) {
  epoch_ = 0;
  neighbours_.End();
  // What is being computed may wait for ranks that are gone.
  group_.Leave(why);
  HandleStage(prefill::EpochEnded{});
  world_.After(node_, 1, "checks are given up", [this] { TellComputed(); });
}

// ---- Stage 0 ----

void PrefillProcess::CheckNeighbours() {
  const absl::Status gone = neighbours_.Check(
      [this](const InstanceRef& instance) { return membership_->FindPeer(instance); });
  if (!gone.ok()) FailEpoch(gone);
}

void PrefillProcess::CheckEndpoints() {
  for (const auto& neighbour : {neighbours_.previous(), neighbours_.next()}) {
    if (!neighbour.has_value() || !membership_->KnowsDead(neighbour->endpoint)) continue;
    world_.After(node_, kLostUs, "endpoint check", [this, epoch = epoch_, gone = *neighbour] {
      if (epoch != epoch_) return;
      world_.Violate(absl::StrCat(self_.id, " goes on with an epoch whose endpoint to ",
                                  gone.instance.id, " has been dead for ", kLostUs / 1000, " ms"));
    });
  }
}

void PrefillProcess::OnMembers() {
  CheckNeighbours();
  CheckEndpoints();
  if (!plans()) return;
  const links::ChainPlace place = PlaceOf(topology_, node_, self_);
  wiring_events_.Raise(links::MembersSeen{WithImpostors(world_, place, membership_->peers())});
}

void PrefillProcess::HandleWiring(const links::WiringEvent& event) {
  std::vector<links::WiringAction> actions;
  wiring_->Handle(event, world_.now_us(), actions);
  wiring_witness_->Saw(event, actions, *wiring_);
  for (const auto& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
  ScheduleWiringTick();
}

void PrefillProcess::Perform(const links::TryOwnEpoch& action) {
  wiring_events_.Raise(links::OwnEpochTried{Begin(action.hello)});
}

void PrefillProcess::Perform(const links::OpenLinks& action) {
  for (const worker::PeerWorker& member : action.members) {
    const int place = member.pp_rank * topology_.ranks + member.tensor_rank.rank;
    const uint64_t call = world_.OpenCall(node_, NodeOf(member.instance.id));
    if (call == 0) {
      world_.After(node_, kRefusedUs, "connection refused", [this, place, epoch = epoch_] {
        wiring_events_.Raise(
            links::StageLinkEnded{place, epoch, absl::UnavailableError("nobody listens")});
      });
      continue;
    }
    links_[place] = call;
    world_.SendOnCall<PrefillProcess>(
        call, node_, "hello",
        [call, hello = action.hello](PrefillProcess& peer) { peer.ReceiveHello(call, hello); });
  }
}

// Beside the calls' losses: two a second on every link would leave no chain standing.
void PrefillProcess::Perform(const links::PingStages& action) {
  for (const auto& [member, call] : links_) {
    if (!world_.CallOpen(call)) continue;
    const uint64_t next_done = planner_->plans_done(member / topology_.ranks + 1);
    world_.Send<PrefillProcess>(node_, NodeOfMember(member), "ping",
                                [ping = links::PingHeard{call, action.sequence, next_done}](
                                    PrefillProcess& peer) { peer.ReceivePing(ping); });
  }
}

void PrefillProcess::Perform(const links::CloseLinks&) {
  for (const auto& [member, call] : std::exchange(links_, {})) world_.BreakCall(call);
}

void PrefillProcess::Perform(const links::ReportChainUp& action) {
  freed_.Reset();
  groups_.CheckUp(chain_, action.epoch);
  prefill::ChainUp up{action.epoch, topology_.stages, action.page_count};
  up.ranks = topology_.ranks;
  for (int stage = 0; stage < topology_.stages; ++stage) {
    up.stage_layers.push_back(topology_.StageLayers(stage).size());
  }
  up.known_costs = profile_->Known(up.stage_layers);
  HandlePlanner(up);
  membership_->ReportSoon();
}

void PrefillProcess::Perform(const links::ReportChainDown& action) {
  if (topology_.first_router_stands) {
    world_.Violate(
        absl::StrCat("a router's death breaks ", self_.id, "'s chain: ", action.status.message()));
  }
  EndEpoch(action.status);
  HandlePlanner(prefill::ChainDown{action.status});
  membership_->ReportSoon();
}

void PrefillProcess::ReceiveReport(int member, uint64_t epoch, const SimReport& report) {
  report_ = report;
  wiring_events_.Raise(links::ReportHeard{member, epoch});
}

void PrefillProcess::Perform(const links::PassReport& action) {
  if (const auto* done = std::get_if<prefill::PlanDone>(&report_)) {
    HandlePlanner(prefill::StagePlanDone{action.stage, action.epoch, *done, action.rank});
  } else {
    const auto& closed = std::get<prefill::RequestClosed>(report_);
    HandlePlanner(prefill::StageRequestClosed{action.stage, action.epoch, closed, action.rank});
  }
}

void PrefillProcess::Perform(const links::TellOwnStage& action) {
  HandleStage(prefill::NextStageDone{action.epoch, planner_->plans_done(1)});
}

// ---- Groups ----

void PrefillProcess::Perform(const links::FormOwnGroup& action) {
  JoinAsLeader(group_, PlaceOf(topology_, node_, self_), action.hello, wiring_events_);
}

void PrefillProcess::Perform(const links::TellGroup& action) {
  if (action.member == 0) return group_.OnMessage(action.message);
  const auto link = links_.find(action.member);
  if (link == links_.end()) return;  // The member has no link.
  const uint64_t call = link->second;
  world_.SendOnCall<PrefillProcess>(
      call, node_, "group word",
      [call, message = action.message](PrefillProcess& peer) { peer.ReceiveGroup(call, message); });
}

void PrefillProcess::Perform(const links::FormGroup& action) {
  const auto tell = [this, call = action.link](const links::WiringEvent& event) {
    if (!link_->Stands(call)) return;
    world_.SendOnCall<PrefillProcess>(
        call, node_, "group word", [event](PrefillProcess& peer) { peer.ReceiveFromStage(event); });
  };
  const auto formed = [this](const links::GroupFormed& event) {
    KeepForLater(event);
    link_events_.Raise(event);
  };
  JoinAsMember(group_, PlaceOf(topology_, node_, self_), action.hello, tell, formed);
}

void PrefillProcess::ReceiveGroup(uint64_t call, const Rendezvous::Message& message) {
  if (link_->Stands(call)) group_.OnMessage(message);
}

// ---- The other members ----

void PrefillProcess::HandleLink(const links::LinkEvent& event) {
  std::vector<links::LinkAction> actions;
  link_->Handle(event, world_.now_us(), actions);
  link_witness_->Saw(event, actions, *link_);
  for (const auto& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
  ScheduleWiringTick();
}

void PrefillProcess::ReceiveHello(uint64_t call, const links::Hello& hello) {
  if (hello.members[static_cast<size_t>(member_)].instance != self_) {
    world_.BreakCall(call);  // Its former life's.
    return;
  }
  link_events_.Raise(links::HelloArrived{call, hello});
  if (!link_->Stands(call) || !world_.Strikes(&NetworkFaults::nonsense)) return;
  link_events_.Raise(AnotherLeader(world_, hello));
  link_events_.Raise(NonsenseOn(world_, call, hello));
}

void PrefillProcess::ReceivePing(const links::PingHeard& ping) { link_events_.Raise(ping); }

void PrefillProcess::Perform(const links::SendPong&) {
  world_.Send<PrefillProcess>(
      node_, NodeOfMember(0), "pong",
      [member = member_, epoch = link_->hello().epoch](PrefillProcess& peer) {
        peer.ReceiveFromStage(links::StageHeard{member, epoch});
      });
}

void PrefillProcess::Perform(const links::TakeWork&) {
  const prefill::Plan plan = std::exchange(arriving_, {});
  if (!StrikeWithNonsense(plan)) HandleStage(prefill::PlanArrived{plan});
}

void PrefillProcess::Perform(const links::PassNextStageDone& action) {
  HandleStage(prefill::NextStageDone{action.epoch, action.number});
}

void PrefillProcess::Perform(const links::TryEpoch& action) {
  link_events_.Raise(links::EpochTried{Begin(action.hello)});
}

void PrefillProcess::Perform(const links::SendReady& action) {
  groups_.CheckReady(KeyOf(action.epoch), rank_.rank);
  link_call_ = action.link;
  world_.SendOnCall<PrefillProcess>(
      action.link, node_, "link ready",
      [member = member_, epoch = action.epoch,
       pages = topology_.prefill_pages](PrefillProcess& peer) {
        peer.ReceiveFromStage(links::StageReady{member, epoch, pages});
      });
}

void PrefillProcess::Perform(const links::DropEpoch& action) {
  link_call_ = 0;
  EndEpoch(action.why);
}

void PrefillProcess::Perform(const links::RefuseLink& action) {
  world_.Trace(node_, absl::StrCat("REFUSED: ", action.status.message()));
  if (action.newest_epoch == 0) return world_.BreakCall(action.link);
  world_.SendOnCall<PrefillProcess>(
      action.link, node_, "link refused",
      [member = member_, epoch = action.epoch, newest = action.newest_epoch](PrefillProcess& peer) {
        peer.ReceiveFromStage(links::StageRefused{member, epoch, newest});
      });
  // gRPC delivers what was written before the end; here the end must not overtake it.
  world_.After(node_, kRefusalReadUs, "refused link ends",
               [this, call = action.link] { world_.BreakCall(call); });
}

void PrefillProcess::Perform(const links::EndLink& action) { world_.BreakCall(action.link); }

}  // namespace baton::sim
