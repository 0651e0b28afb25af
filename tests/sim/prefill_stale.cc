// Messages of an older epoch that come late: plans, activations, credits and what stages answer. No
// link or connection of today keeps one so long, and the cores promise not to rely on that.
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/sim/prefill_process.h"

namespace baton::sim {

void PrefillProcess::KeepForLater(const prefill::PlannerEvent& event) {
  const bool of_epoch = std::holds_alternative<prefill::StagePlanDone>(event) ||
                        std::holds_alternative<prefill::StageRequestClosed>(event);
  if (of_epoch) stale_planner_.Keep(event);
}

void PrefillProcess::KeepForLater(const prefill::StageEvent& event) {
  const bool of_epoch = std::holds_alternative<prefill::PlanArrived>(event) ||
                        std::holds_alternative<prefill::ActivationsArrived>(event) ||
                        std::holds_alternative<prefill::CreditReturned>(event) ||
                        std::holds_alternative<prefill::NextStageDone>(event);
  if (of_epoch) stale_stage_.Keep(event);
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
