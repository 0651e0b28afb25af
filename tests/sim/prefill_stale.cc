// Messages of an older epoch that come late: plans, activations, credits and what stages answer. No
// link or connection of today keeps one so long, and the cores promise not to rely on that.
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/sim/prefill_process.h"

namespace baton::sim {
namespace {

constexpr double kKept = 0.1;
constexpr size_t kKeptMost = 6;

}  // namespace

void PrefillProcess::KeepForLater(const prefill::PlannerEvent& event) {
  const bool of_epoch = std::holds_alternative<prefill::StagePlanDone>(event) ||
                        std::holds_alternative<prefill::StageRequestClosed>(event);
  if (!of_epoch || stale_planner_.size() == kKeptMost || !world_.random().Chance(kKept)) return;
  stale_planner_.push_back(event);
}

void PrefillProcess::KeepForLater(const prefill::StageEvent& event) {
  const bool of_epoch = std::holds_alternative<prefill::PlanArrived>(event) ||
                        std::holds_alternative<prefill::ActivationsArrived>(event) ||
                        std::holds_alternative<prefill::CreditReturned>(event) ||
                        std::holds_alternative<prefill::NextStageDone>(event);
  if (!of_epoch || stale_stage_.size() == kKeptMost || !world_.random().Chance(kKept)) return;
  stale_stage_.push_back(event);
}

// What is said of groups on their way to be.
void PrefillProcess::KeepForLater(const links::WiringEvent& event) {
  const bool of_group = std::holds_alternative<links::GroupJoinHeard>(event) ||
                        std::holds_alternative<links::GroupEntryHeard>(event) ||
                        std::holds_alternative<links::GroupConnectedHeard>(event);
  if (!of_group || stale_wiring_.size() == kKeptMost || !world_.random().Chance(kKept)) return;
  stale_wiring_.push_back(event);
}

void PrefillProcess::KeepForLater(const links::GroupFormed& event) {
  if (stale_group_.size() < kKeptMost && world_.random().Chance(3 * kKept)) {
    stale_group_.push_back(event);
  }
}

void PrefillProcess::ScheduleStale() {
  const auto late_us = [this] {
    return world_.random().Between(0, world_.random().Chance(0.5) ? 5000 : 3'000'000);
  };
  for (const prefill::PlannerEvent& event : std::exchange(stale_planner_, {})) {
    world_.After(node_, late_us(), "stale report", [this, event] { DeliverStale(event); });
  }
  for (const prefill::StageEvent& event : std::exchange(stale_stage_, {})) {
    world_.After(node_, late_us(), "stale message", [this, event] { DeliverStale(event); });
  }
  for (const links::WiringEvent& event : std::exchange(stale_wiring_, {})) {
    world_.After(node_, late_us(), "stale word", [this, event] { DeliverStale(event); });
  }
  for (const links::GroupFormed& event : std::exchange(stale_group_, {})) {
    world_.After(node_, late_us(), "stale group", [this, event] { DeliverStale(event); });
  }
}

void PrefillProcess::DeliverStale(const links::WiringEvent& event) {
  const std::pair before(wiring_->epoch(), wiring_->up());
  std::vector<links::WiringAction> actions;
  wiring_->Handle(event, world_.now_us(), actions);
  if (actions.empty() && std::pair(wiring_->epoch(), wiring_->up()) == before) return;
  world_.Violate(absl::StrCat(self_.id, ": a word of an older epoch's group has an effect"));
}

void PrefillProcess::DeliverStale(const links::GroupFormed& event) {
  std::vector<links::LinkAction> actions;
  link_->Handle(event, world_.now_us(), actions);
  if (actions.empty()) return;
  world_.Violate(absl::StrCat(self_.id, ": the end of an older epoch's group has an effect"));
}

void PrefillProcess::DeliverStale(const prefill::PlannerEvent& event) {
  HandlePlanner(prefill::Tick{});  // What is due happens before, and not because of it.
  const auto state = [this] {
    const prefill::PlannerLoad load = planner_->load();
    std::string text = absl::StrCat(load.queued, " ", load.open, " ", load.queued_tokens, " ",
                                    load.owned_pages, " ", load.plans_in_flight);
    for (int stage = 0; stage < topology_.stages; ++stage) {
      absl::StrAppend(&text, " ", planner_->plans_done(stage));
    }
    return text;
  };
  const std::string before = state();
  std::vector<prefill::PlannerAction> actions;
  planner_->Handle(event, world_.now_us(), actions);
  if (actions.empty() && state() == before) return;
  world_.Violate(absl::StrCat(self_.id, ": a report of an older epoch has an effect"));
}

void PrefillProcess::DeliverStale(const prefill::StageEvent& event) {
  const auto state = [this] {
    return std::pair(stage_.held_pages(), std::pair(stage_.doing(), stage_.AtRest()));
  };
  const auto before = state();
  std::vector<prefill::StageAction> actions;
  stage_.Handle(event, world_.now_us(), actions);
  if (actions.empty() && state() == before) return;
  world_.Violate(absl::StrCat(self_.id, ": a message of an older epoch has an effect"));
}

}  // namespace baton::sim
