// Whether every stage makes progress. A completed send does not mean that the message has arrived:
// lost activations or a lost credit stop a chain for good, while all its links answer pings.
//
// A stage has a plan's input when the stage before it is done with the plan, and can begin when it
// is done with its own plan before. From then on it may take the grace, which covers the transfer
// and its wait for a credit, and a multiple of what the fastest of the stages before it took for
// the same tokens: stages differ in layers and hosts, but not by more, and a stage that was held up
// says nothing of the next. Stage 0's own computation is checked by its process's liveness.
//
// A request that is over keeps its pages until every stage has closed it, which a send that never
// ends would prevent. So that has a deadline too, and a stage that misses it ends the epoch: it is
// not linked again, and its chain is in no pair, before nothing of the old epoch is under way. A
// request that is not over has its own deadline.
//
// Rejected: acknowledgements of activations and credits, which would find a loss sooner but not a
// receiver that has lost what it acknowledged.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "services/prefill/core/planner_state.h"

namespace baton::prefill {
namespace {

constexpr int64_t kSlowerStage = 20;

}  // namespace

// kNeverUs: nothing is expected of it now. `stage` > 0.
int64_t ChainPlanner::State::ProgressDueUs(size_t stage) const {
  const uint64_t next = done.at(stage) + 1;
  if (done[stage - 1] < next) return kNeverUs;
  const auto plan = std::find_if(plans.begin(), plans.end(),
                                 [next](const IssuedPlan& p) { return p.number == next; });
  // Stages report in order, and a plan is kept until all have.
  if (plan == plans.end()) return kNeverUs;
  const int64_t begin_us = std::max(plan->done_us[stage - 1], last_done_us[stage]);
  // A rank whose sums are overdue reports which rank it waits for.
  const int64_t group_us = ranks > 1 ? limits.plan_grace_us / 3 : 0;
  const int64_t grace_us = limits.plan_grace_us + group_us;
  // Reports of different stages overtake each other: those of earlier ones may not be here.
  const auto end = plan->compute_us.begin() + static_cast<int64_t>(stage);
  const int64_t compute_us = *std::min_element(plan->compute_us.begin(), end);
  return begin_us + grace_us + kSlowerStage * compute_us;
}

int64_t ChainPlanner::State::NextProgressUs() const {
  int64_t next_us = kNeverUs;
  if (chain_failed) return next_us;
  for (size_t stage = 1; stage < done.size(); ++stage) {
    next_us = std::min(next_us, ProgressDueUs(stage));
  }
  for (const uint64_t attempt_id : open) {
    next_us = std::min(next_us, CloseDueUs(requests.at(attempt_id)));
  }
  return next_us;
}

int64_t ChainPlanner::State::CloseDueUs(const Request& request) const {
  return request.over_us == kNeverUs ? kNeverUs : request.over_us + limits.close_grace_us;
}

void ChainPlanner::State::FailAt(int stage, int rank, absl::Status status) {
  chain_failed = true;
  Emit(FailChain{stage, std::move(status), rank});
}

void ChainPlanner::State::CheckClosings(int64_t now_us) {
  for (const uint64_t attempt_id : open) {
    Request& request = requests.at(attempt_id);
    const bool closed =
        std::find(request.closed.begin(), request.closed.end(), false) == request.closed.end();
    const bool over =
        request.ending() && ToldInFull(request) && !closed && DoneEverywhere() >= request.last_plan;
    if (over && request.over_us == kNeverUs) request.over_us = now_us;
    if (chain_failed || closed || CloseDueUs(request) > now_us) continue;
    const auto late = std::find(request.closed.begin(), request.closed.end(), false);
    const auto place = static_cast<int>(late - request.closed.begin());
    FailAt(place / ranks, place % ranks,
           absl::UnavailableError(absl::StrCat(
               "stage ", place / ranks, " has not closed attempt ", attempt_id, " within ",
               (now_us - request.over_us) / 1000, " ms of its end; a send of it is stuck")));
  }
}

void ChainPlanner::State::CheckProgress(int64_t now_us) {
  CheckClosings(now_us);
  if (NextProgressUs() > now_us) return;
  for (size_t stage = 1; stage < done.size(); ++stage) {
    if (ProgressDueUs(stage) > now_us) continue;
    Covered<"planner: a plan is overdue">();
    FailAt(static_cast<int>(stage), tallies[stage].slowest(),
           absl::UnavailableError(absl::StrCat(
               "plan ", done[stage] + 1, " has not come to its end on stage ", stage, " within ",
               (now_us - std::max(last_done_us[stage], last_done_us[stage - 1])) / 1000,
               " ms; what was sent to it is lost")));
    return;
  }
}

// What plans cost each stage, learned from how long they took, and what follows from it for the
// size of those to come.

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
  // There are thousands of decode steps for each chunk, and they say little of what chunks cost.
  if (!plan.draws.empty() && !plan.has_chunks) return;
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

// The end of a chain, told by its stage 0: what has been accepted goes through the chain to its
// last byte if the time suffices, nothing else comes in.
void ChainPlanner::State::On(const DrainBegan& event, int64_t /*now_us*/) {
  if (!draining) arrived_before_drain = arrived;
  if (!std::exchange(draining, true)) HandBackWaiting();
  drain_deadline_us = std::min(drain_deadline_us, event.deadline_us);
}

absl::Status ChainPlanner::State::RefuseToBegin() {
  if (!draining) return absl::OkStatus();
  Covered<"planner: a draining chain refuses">();
  ++drain_counts.refused_total;
  return EndedByDrain(
      absl::UnavailableError(absl::StrCat("this ", limits.name, " drains and begins nothing new")));
}

// Rejected: to give back prompts with a ticket that wait when the drain begins, too. Their pages
// are reserved on a decode service, and often no other chain is there to begin them sooner.
void ChainPlanner::State::EndDrain(int64_t now_us) {
  if (now_us < drain_deadline_us) return;
  std::vector<uint64_t> unfinished;
  for (const auto& [attempt_id, request] : requests) {
    if (!request.finished) unfinished.push_back(attempt_id);
  }
  for (const uint64_t attempt_id : unfinished) {
    Covered<"planner: a drain ends a request">();
    ++drain_counts.time_over_total;
    Fail(attempt_id,
         EndedByDrain(absl::UnavailableError(absl::StrCat(
             "this ", limits.name, " left before the request was through (--drain-timeout-ms)"))));
  }
}

}  // namespace baton::prefill
