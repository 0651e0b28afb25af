// What plans cost each stage, learned from how long they took, and what follows from it for the
// size of those to come.
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "services/prefill/core/planner_state.h"

namespace baton::prefill {

// A stage that is another process now may have its predecessor's machine or not: what was learned
// is the best guess there is, and is learned again if it is wrong.
void ChainPlanner::State::KeepFitsFor(const ChainUp& event) {
  const auto stages = static_cast<size_t>(event.stages);
  BATON_CHECK(event.known_costs.empty() || event.known_costs.size() == stages)
      << event.known_costs.size() << " costs of " << stages << " stages";
  if (fits.size() == stages && fit_layers == event.stage_layers) return;
  fits = std::vector<CostFit>(event.known_costs.begin(), event.known_costs.end());
  fits.resize(stages);
  fit_layers = event.stage_layers;
  UseCosts();
}

void ChainPlanner::State::LearnFrom(const IssuedPlan& plan, size_t stage) {
  const int64_t compute_us = plan.compute_us[stage];
  if (!plan.predicted_us.empty() && compute_us > 0) {
    Emit(ObservePlan{static_cast<int>(stage), plan.work.tokens, plan.predicted_us[stage],
                     compute_us});
  }
  fits[stage].Add(plan.work, compute_us);
  UseCosts();
}

void ChainPlanner::State::UseCosts() {
  const size_t known = costs.size();
  costs.clear();
  for (const CostFit& fit : fits) {
    const std::optional<StageCost> cost = fit.cost();
    if (cost.has_value()) costs.push_back(*cost);
  }
  if (costs.size() < fits.size()) costs.clear();
  if (known > 0 && costs.empty()) Covered<"planner: costs are not known any more">();
  if (known == 0 && !costs.empty()) Covered<"planner: costs become known">();
  policy->SetCosts(costs);
}

std::vector<LearnedCost> ChainPlanner::costs() const {
  std::vector<LearnedCost> learned;
  const std::vector<int>& layers = state_->fit_layers;
  for (size_t stage = 0; stage < state_->fits.size(); ++stage) {
    const CostFit& fit = state_->fits[stage];
    learned.push_back({fit.cost(), fit.missing(), fit.error(), fit.plans(),
                       stage < layers.size() ? layers[stage] : 0});
  }
  return learned;
}

}  // namespace baton::prefill
