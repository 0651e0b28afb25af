// What plans cost each stage, learned from how long they took, and what follows from it for the
// size of those to come.
#include <algorithm>
#include <climits>

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"
#include "common/base/planted_bug.h"
#include "services/prefill/core/planner_state.h"

namespace baton::prefill {

// A stage that is another process now may have its predecessor's machine or not: what was learned
// is the best guess there is, and is learned again if it is wrong.
void ChainPlanner::State::KeepFitsFor(size_t stages) {
  if (fits.size() == stages) return;
  fits.clear();
  const bool known = limits.known_costs.size() == stages;
  for (size_t stage = 0; stage < stages; ++stage) {
    fits.push_back(known ? CostFit(limits.known_costs[stage]) : CostFit());
  }
  UseCosts();
}

void ChainPlanner::State::LearnFrom(const IssuedPlan& plan, size_t stage) {
  if (plan.work.tokens == 0) return;
  const int64_t compute_us = plan.compute_us[stage];
  if (stage < plan.predicted_us.size() && compute_us > 0) {
    Emit(ObservePlan{static_cast<int>(stage), plan.work.tokens, plan.predicted_us[stage],
                     compute_us});
  }
  const bool mixed_up = PlantedBug(Bug::kPlannerLearnsFromOthers);
  fits[mixed_up ? 0 : stage].Add(plan.work, compute_us);
  UseCosts();
}

void ChainPlanner::State::UseCosts() {
  const bool knew = !costs.empty();
  costs.clear();
  for (const CostFit& fit : fits) {
    const std::optional<StageCost> cost = fit.cost();
    if (!cost.has_value()) break;
    costs.push_back(*cost);
  }
  if (costs.size() < fits.size()) costs.clear();
  if (knew && costs.empty()) Covered<"planner: costs are not known any more">();
  if (!knew && !costs.empty()) Covered<"planner: costs become known">();
  policy->SetCosts(costs);
}

// Who sets no chunk size wants no prompt cut; a rule that looks for the size cuts what would fit.
bool ChainPlanner::State::PlansHoldWholePrompts() const {
  if (limits.chunk_rule != ChunkRule::kFixed) return limits.chunk_tokens == INT_MAX;
  return limits.chunk_tokens >= limits.max_context_tokens;
}

// Not yet planned.
int64_t ChainPlanner::State::TokensOfOthers(uint64_t attempt_id) const {
  int64_t tokens = 0;
  for (const auto& [other, request] : requests) {
    if (other != attempt_id) tokens += TokensLeft(other);
  }
  return tokens;
}

std::vector<LearnedCost> ChainPlanner::costs() const {
  std::vector<LearnedCost> learned;
  for (const CostFit& fit : state_->fits) {
    learned.push_back({fit.cost(), fit.error(), fit.outliers()});
  }
  return learned;
}

std::string ChainPlanner::without_costs() const {
  const bool asks = state_->limits.chunk_rule != ChunkRule::kFixed;
  if (!asks || !state_->costs.empty() || state_->fits.empty()) return "";
  for (size_t stage = 0; stage < state_->fits.size(); ++stage) {
    const CostFit& fit = state_->fits[stage];
    if (fit.cost().has_value()) continue;
    if (fit.error() > CostFit::kLargestError) {
      return absl::StrCat("plans of stage ", stage, " take other times than predicted");
    }
    return absl::StrCat("too few or too equal plans have been seen of stage ", stage);
  }
  return "";
}

}  // namespace baton::prefill
