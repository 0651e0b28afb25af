// How the real wiring and link of a chain are run in the simulation: calls that break, pings, and
// wall clocks that are set back. Plays services/prefill/chain (chain_links.cc, stage_link.cc).
#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/prefill_process.h"

namespace baton::sim {
namespace {

constexpr int64_t kLostUs = 10'000;  // From an endpoint's death to the end of its epoch.

}  // namespace

void PrefillProcess::MakeLinks() {
  if (plans()) {
    const links::WiringOptions wiring{PlaceOf(topology_, node_, self_), topology_.prefill_pages,
                                      topology_.chunk_tokens, topology_.activation_credits,
                                      topology_.times.chain};
    wiring_.emplace(
        world_, topology_, groups_, group_, node_, wiring, /*keeps_reports=*/false,
        SimWiring::Callbacks{
            [this](const links::Hello& hello) { return Begin(hello); },
            [this](uint64_t epoch, int page_count) { OnUp(epoch, page_count); },
            [this](const absl::Status& status) { OnDown(status); },
            [this](const prefill::PlannerEvent& report) { HandlePlanner(report); },
            [this](int stage) { return planner_->plans_done(stage); },
            [this](uint64_t epoch) {
              HandleStage(prefill::NextStageDone{epoch, planner_->plans_done(1)});
            },
            [this](const links::WiringEvent& event) { return StrikeWithReady(event); }});
  } else {
    link_.emplace(world_, topology_, groups_, group_, node_,
                  SimLink::Options{PlaceOf(topology_, node_, self_), topology_.prefill_pages,
                                   "wiring tick", /*keeps_work=*/false},
                  SimLink::Callbacks{[this](const links::Hello& hello) { return Begin(hello); },
                                     [this](const absl::Status& why) { EndEpoch(why); },
                                     [this](uint64_t epoch, uint64_t number) {
                                       HandleStage(prefill::NextStageDone{epoch, number});
                                     }});
  }
}

void PrefillProcess::CallBroken(uint64_t call) {
  membership_->CallBroken(call);
  group_.CallBroken(call);
  if (!plans()) return link_->Raise(links::LinkGone{call});
  if (wiring_->CallBroken(call)) return;
  for (const auto& [attempt, prompt] : prompts_) {
    if (prompt.start_call == call) return Abort(attempt);
  }
}

void PrefillProcess::FailEpoch(const absl::Status& status) {
  if (plans()) {
    wiring_->Raise(links::ChainFailed{status});
  } else {
    link_->Raise(links::StageFailed{status});
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
  stale_planner_.TellLater("stale report", [this](const auto& event) { DeliverStale(event); });
  stale_stage_.TellLater("stale message", [this](const auto& event) { DeliverStale(event); });
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
  if (plans()) wiring_->OnMembers(membership_->peers());
}

void PrefillProcess::OnUp(uint64_t epoch, int page_count) {
  freed_.Reset();
  prefill::ChainUp up{epoch, topology_.stages, page_count};
  up.ranks = topology_.ranks;
  for (int stage = 0; stage < topology_.stages; ++stage) {
    up.stage_layers.push_back(topology_.StageLayers(stage).size());
  }
  up.known_costs = profile_->Known(up.stage_layers);
  HandlePlanner(up);
  membership_->ReportSoon();
}

void PrefillProcess::OnDown(const absl::Status& status) {
  if (topology_.first_router_stands) {
    world_.Violate(
        absl::StrCat("a router's death breaks ", self_.id, "'s chain: ", status.message()));
  }
  EndEpoch(status);
  HandlePlanner(prefill::ChainDown{status});
  membership_->ReportSoon();
}

}  // namespace baton::sim
