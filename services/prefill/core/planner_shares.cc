// Whose tokens the next plan holds (chain_planner.h states the rule).
#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/coverage.h"
#include "common/base/planted_bug.h"
#include "common/chunking/chunk_plan.h"
#include "services/prefill/core/planner_state.h"

namespace baton::prefill {

int64_t ChainPlanner::State::UnplannedTokens() const {
  int64_t tokens = 0;
  for (const auto& [attempt_id, request] : requests) tokens += request.tokens_left();
  return tokens;
}

// The oldest open prompt with tokens left; nullptr: there is none.
const uint64_t* ChainPlanner::State::Leader() const {
  const auto leader = std::find_if(
      open.begin(), open.end(), [this](uint64_t attempt_id) { return TokensLeft(attempt_id) > 0; });
  return leader == open.end() ? nullptr : &*leader;
}

// Whether it is a waiting prompt's turn to lead. Who has overtaken it is open, and younger.
bool ChainPlanner::State::OldestBegins() const {
  if (queue.empty()) return false;
  const uint64_t* leader = Leader();
  const bool older =
      leader == nullptr || requests.at(queue.front()).order < requests.at(*leader).order;
  return older && MayAdmitOldest();
}

// Who leads, or would lead, sets the plan's budget.
int ChainPlanner::State::NextBudget() const {
  const uint64_t* leader = Leader();
  if (leader == nullptr && queue.empty()) return 0;
  const uint64_t first = OldestBegins() || leader == nullptr ? queue.front() : *leader;
  const int left = TokensLeft(first);
  return policy->PlanTokens({requests.at(first).planned_tokens, left, UnplannedTokens() - left,
                             static_cast<int>(done.size())});
}

// As many more tokens of the prompt as fit; how many that are.
int ChainPlanner::State::Give(uint64_t attempt_id, int budget) {
  const int tokens = FitChunk(TokensLeft(attempt_id), budget, limits.page_size);
  requests.at(attempt_id).given_tokens += tokens;
  return tokens;
}

// The shortest first, and of these the oldest.
std::vector<uint64_t> ChainPlanner::State::OpenAndShorter(int tokens) const {
  std::vector<uint64_t> found;
  std::copy_if(open.begin(), open.end(), std::back_inserter(found), [&](uint64_t attempt_id) {
    const int left = TokensLeft(attempt_id);
    return left > 0 && left < tokens;
  });
  std::stable_sort(found.begin(), found.end(), [this](uint64_t one, uint64_t two) {
    return TokensLeft(one) < TokensLeft(two);
  });
  return found;
}

// The shortest that waits, if there is room for it. If there is not, there is none for any other,
// but perhaps for the oldest, which has nobody to leave room for.
std::optional<uint64_t> ChainPlanner::State::NextToBegin(int shorter_than) const {
  if (waiting_by_size.empty()) return std::nullopt;
  for (const uint64_t attempt_id : {std::get<2>(*waiting_by_size.begin()), queue.front()}) {
    if (TokensLeft(attempt_id) < shorter_than && MayOvertake(attempt_id)) return attempt_id;
  }
  return std::nullopt;
}

// How much of the budget the shorter ones take. They pay in whole pages, since what their last ones
// leave is of no use to the leader. What is less than a page of their share is theirs in the next
// plan, so that plans of one page are shared too.
int ChainPlanner::State::ShareWithShorter(uint64_t leader, int credit, int budget, Plan& plan,
                                          int64_t now_us) {
  const int leader_tokens = TokensLeft(leader);
  const std::vector<uint64_t> running = OpenAndShorter(leader_tokens);
  auto next_running = running.begin();
  credit += shared_credit_tokens;
  if (PlantedBug(Bug::kPlannerStarvesLong)) credit = budget;
  int share = WholePages(std::min(credit, budget));
  int given = 0;
  bool wanted = false;
  while (true) {
    const std::optional<uint64_t> waiting = NextToBegin(leader_tokens);
    const bool runs = next_running != running.end() &&
                      !(waiting.has_value() && TokensLeft(*waiting) < TokensLeft(*next_running));
    if (!runs && !waiting.has_value()) break;
    wanted = true;
    if (share == 0) break;
    const uint64_t shortest = runs ? *next_running++ : *waiting;
    if (!runs) Admit(shortest, plan, now_us);  // With a chunk: an open one owns pages.
    const int tokens = Give(shortest, share);
    given += tokens;
    const int paid = WholePages(tokens + limits.page_size - 1);
    share -= paid;
    credit -= paid;
  }
  shared_credit_tokens = wanted ? std::min(credit, limits.page_size) : 0;
  if (given > 0) Covered<"planner: a long prompt shares its plan">();
  return given;
}

// The oldest first.
void ChainPlanner::State::FillInOrder(int budget, Plan& plan, int64_t now_us) {
  while (budget > 0) {
    if (OldestBegins()) {
      const uint64_t oldest = queue.front();
      if (FitChunk(TokensLeft(oldest), budget, limits.page_size) == 0) return;
      Admit(oldest, plan, now_us);
    }
    const uint64_t* leader = Leader();
    if (leader == nullptr) return;
    const int tokens = Give(*leader, budget);
    if (tokens == 0) return;
    budget -= tokens;
  }
}

void ChainPlanner::State::ShareOut(Plan& plan, int budget, int64_t now_us) {
  const int credit = budget / kShorterShare;
  if (OldestBegins()) {
    const uint64_t oldest = queue.front();
    Admit(oldest, plan, now_us);
    budget -= Give(oldest, std::min(budget, limits.page_size));
  }
  const uint64_t* leader = Leader();
  if (leader != nullptr && !PlansHoldWholePrompts() && !PlantedBug(Bug::kPlannerSharesNothing)) {
    budget -= ShareWithShorter(*leader, credit, budget, plan, now_us);
  }
  FillInOrder(budget, plan, now_us);
}

Plan ChainPlanner::State::BuildPlan(int64_t now_us) {
  Plan plan;
  plan.epoch = epoch;
  plan.number = issued + 1;
  for (const uint64_t attempt_id : std::exchange(aborts_due, {})) {
    Request& request = requests.at(attempt_id);
    request.abort_issued = true;
    request.last_plan = plan.number;
    plan.aborts.push_back(attempt_id);
  }
  ShareOut(plan, NextBudget(), now_us);
  const std::vector<int64_t> nobody(done.size(), 0);
  IssuedPlan record{plan.number, {}, nobody, nobody, {}, {}};
  for (const uint64_t attempt_id : open) {
    Request& request = requests.at(attempt_id);
    const int tokens = std::exchange(request.given_tokens, 0);
    if (tokens == 0) continue;
    PlanItem item{attempt_id, request.planned_tokens, tokens, false};
    request.planned_tokens += tokens;
    request.last_plan = plan.number;
    item.final = request.fully_planned();
    plan.items.push_back(item);
    record.chunks.emplace_back(attempt_id, request.outcome.chunks.size());
    record.work.Add(item.token_begin, item.token_count);
    request.outcome.chunks.push_back(
        {item.token_begin, item.token_count, std::vector<PlanDone>(done.size())});
  }
  for (const StageCost& cost : costs) record.predicted_us.push_back(cost.Micros(record.work));
  if (!plan.items.empty() || !plan.aborts.empty()) plans.push_back(std::move(record));
  return plan;
}

}  // namespace baton::prefill
