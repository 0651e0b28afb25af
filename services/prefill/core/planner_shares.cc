// Which requests' tokens the next plan holds (chain_planner.h states the rule), and when it is
// issued.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/coverage.h"
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
      open.begin(), open.end(), [this](uint64_t attempt_id) { return HasTokensLeft(attempt_id); });
  return leader == open.end() ? nullptr : &*leader;
}

// Whether it is a waiting prompt's turn to lead. Open requests that have overtaken it are younger.
bool ChainPlanner::State::OldestBegins() const {
  if (queue.empty() || IsGranted(queue.front())) return false;
  const uint64_t* leader = Leader();
  const bool sooner =
      leader == nullptr || requests.at(queue.front()).turn < requests.at(*leader).turn;
  return sooner && MayAdmitOldest();
}

// The request that leads the next plan; nullptr: there is none, or no room for it.
const uint64_t* ChainPlanner::State::NextLeader() const {
  return OldestBegins() ? &queue.front() : Leader();
}

// Sets the plan's budget, in tokens of the prompt that leads, and what those of others cost. Rows
// count like tokens of prompts, but leave prompts a page. 0: the plan is to have no chunks.
double ChainPlanner::State::SetBudget(uint64_t leader) {
  const int prefix_length = requests.at(leader).planned_tokens;
  const int left = TokensLeft(leader);
  const int wanted = policy->PlanTokens(
      {prefix_length, left, UnplannedTokens() - left, static_cast<int>(done.size())});
  const int rows = static_cast<int>(row_work.tokens);
  room_tokens = std::max(std::min(policy->max_plan_tokens(), limits.input_tokens) - rows,
                         PlansHoldWholePrompts() ? left : limits.page_size);
  const int unbounded = std::min(wanted, room_tokens);
  const int tokens = BoundByTime(prefix_length, unbounded);
  bounded_by_time = tokens < unbounded;
  const bool by_time = limits.chunk_rule == ChunkRule::kOptimal && tokens > 0;
  prices = by_time ? TokenPrices(costs, prefix_length, tokens) : TokenPrices();
  return tokens;
}

// What is left of it costs so much.
double ChainPlanner::State::PriceLeft(uint64_t attempt_id) const {
  const Request& request = requests.at(attempt_id);
  return prices.Of(request.planned_tokens + request.given_tokens, request.tokens_left());
}

// As many more tokens of the prompt as can be paid for, and have room; what they cost. They make
// the chunk longer that it was given of this plan.
double ChainPlanner::State::Give(uint64_t attempt_id, double budget, int room) {
  Request& request = requests.at(attempt_id);
  const int begin = request.planned_tokens;
  const int given = request.given_tokens;
  const double paid = prices.Of(begin, given);
  const PromptShape rest = {begin, given + request.tokens_left(), limits.page_size};
  const int affordable = std::max(prices.Affordable(rest, paid + budget) - given, 0);
  const int tokens = FitChunk(affordable, std::min(room, room_tokens), limits.page_size);
  request.given_tokens += tokens;
  room_tokens -= tokens;
  return prices.Of(begin, given + tokens) - paid;
}

// The shortest first, and of these the oldest.
std::vector<uint64_t> ChainPlanner::State::OpenAndShorter(double price) const {
  std::vector<uint64_t> found;
  std::copy_if(open.begin(), open.end(), std::back_inserter(found), [&](uint64_t attempt_id) {
    return HasTokensLeft(attempt_id) && PriceLeft(attempt_id) < price;
  });
  std::stable_sort(found.begin(), found.end(),
                   [this](uint64_t one, uint64_t two) { return PriceLeft(one) < PriceLeft(two); });
  return found;
}

// The shortest waiting request, if there is room for it. If not, there is room for none but perhaps
// the oldest, which need not leave room for an older one.
std::optional<uint64_t> ChainPlanner::State::NextToBegin(double shorter_than) const {
  if (waiting_by_size.empty()) return std::nullopt;
  for (const uint64_t attempt_id : {std::get<2>(*waiting_by_size.begin()), queue.front()}) {
    if (IsGranted(attempt_id)) continue;
    if (PriceLeft(attempt_id) < shorter_than && MayOvertake(attempt_id)) return attempt_id;
  }
  return std::nullopt;
}

// In whole pages of the leader's: what its next page, or less if that is all, costs.
double ChainPlanner::State::NextPagePrice(uint64_t attempt_id) const {
  const Request& request = requests.at(attempt_id);
  const int tokens = std::min(request.tokens_left(), limits.page_size);
  return InPages(prices.Of(request.planned_tokens + request.given_tokens, tokens));
}

// How much of the budget shorter prompts take. It is counted in whole pages, since the rest of a
// page is of no use to the leader. The part of their share that is less than a page is carried to
// the next plan: so plans of one page are shared too, and a page that costs more than a plan (its
// prompt is shorter, but has a longer prefix than the leader) gets its turn.
double ChainPlanner::State::ShareWithShorter(uint64_t leader, double credit, double budget,
                                             Plan& plan, int64_t now_us) {
  const double leader_price = PriceLeft(leader);
  const std::vector<uint64_t> running = OpenAndShorter(leader_price);
  auto next_running = running.begin();
  credit += shared_credit;
  const double page = limits.page_size;
  double share = std::floor(std::min(credit, budget) / page) * page;
  double most_kept = 0;  // For the next plan; 0: no prompt to use it.
  double spent = 0;
  while (true) {
    const std::optional<uint64_t> waiting = NextToBegin(leader_price);
    const bool runs = next_running != running.end() &&
                      !(waiting.has_value() && PriceLeft(*waiting) < PriceLeft(*next_running));
    if (!runs && !waiting.has_value()) break;
    const uint64_t shortest = runs ? *next_running++ : *waiting;
    most_kept = NextPagePrice(shortest);
    const bool may_exceed = budget > 0 || !bounded_by_time;
    if (spent == 0 && credit >= most_kept && may_exceed) share = std::max(share, most_kept);
    if (!runs) TakeMatch(shortest);
    const double kept = std::max(budget - share, 0.0);  // For the leader, which needs room, too.
    const double price = Give(shortest, share - spent, room_tokens - static_cast<int>(kept));
    if (price == 0) break;
    if (!runs) Admit(shortest, plan, now_us);  // With a chunk: an open one owns pages.
    spent += price;
    if (HasTokensLeft(shortest)) break;  // Another's page may be cheaper, but it comes first.
  }
  shared_credit = std::min(credit - std::min(share, InPages(spent)), most_kept);
  if (spent > 0) Covered<"planner: a long prompt shares its plan">();
  return spent;
}

// The oldest first. Where no prompt is to be cut, those behind the leader go whole or not at all.
void ChainPlanner::State::FillInOrder(uint64_t leader, double budget, Plan& plan, int64_t now_us) {
  while (true) {
    const uint64_t* first = NextLeader();
    if (first == nullptr) return;
    const uint64_t attempt_id = *first;
    if (!requests.at(attempt_id).open) TakeMatch(attempt_id);
    const bool whole = PlansHoldWholePrompts() && attempt_id != leader;
    if (whole && TokensLeft(attempt_id) > std::min<double>(budget, room_tokens)) return;
    const double price = Give(attempt_id, budget, room_tokens);
    if (price == 0) return;
    if (!requests.at(attempt_id).open) Admit(attempt_id, plan, now_us);
    budget -= price;
  }
}

// Whether it was put before others, and ends in this plan unless they share it: then they don't, or
// it would wait for the next plan. The plans of a longer one are shared, or they would wait for all
// of it.
bool ChainPlanner::State::EndsBeforeOthers(uint64_t leader, double budget) const {
  return UserHeadStartUs(requests.at(leader)) > 0 && InPages(PriceLeft(leader)) <= InPages(budget);
}

void ChainPlanner::State::ShareOut(Plan& plan, int64_t now_us) {
  const uint64_t* first = NextLeader();
  if (first == nullptr) return;
  if (!requests.at(*first).open) TakeMatch(*first);
  double budget = SetBudget(*first);
  if (budget == 0) return;
  const bool ends = EndsBeforeOthers(*first, budget);
  const double credit = budget / kShorterShare;
  if (OldestBegins()) {
    const uint64_t oldest = queue.front();
    Admit(oldest, plan, now_us);
    // A page, whatever it costs: behind a cached prefix that is more than one of the budget's.
    const double price = Give(oldest, NextPagePrice(oldest) + 1, limits.page_size);
    budget = std::max(budget - price, 0.0);
  }
  const uint64_t* leads = Leader();
  const uint64_t leader = leads == nullptr ? 0 : *leads;
  const bool shares = limits.shares_plans && !PlansHoldWholePrompts();
  if (leads != nullptr && shares && !ends) {
    budget -= ShareWithShorter(leader, credit, budget, plan, now_us);
  }
  FillInOrder(leader, budget, plan, now_us);
}

Plan ChainPlanner::State::BuildPlan(int64_t now_us) {
  Plan plan;
  plan.epoch = epoch;
  plan.number = issued + 1;
  GrowRows();  // Those that give way to it end in this plan.
  ExpectGrowth();
  for (const uint64_t attempt_id : std::exchange(aborts_due, {})) {
    Request& request = requests.at(attempt_id);
    request.abort_issued = true;
    request.last_plan = plan.number;
    plan.aborts.push_back(attempt_id);
  }
  AddRows(plan, now_us);
  ShareOut(plan, now_us);
  for (const uint64_t attempt_id : open) {
    Request& request = requests.at(attempt_id);
    const int tokens = std::exchange(request.given_tokens, 0);
    if (tokens == 0) continue;
    PlanItem item{attempt_id, request.planned_tokens, tokens};
    request.planned_tokens += tokens;
    request.last_plan = plan.number;
    item.final = request.fully_planned() && request.ticket.has_value();
    item.draws = request.fully_planned() && !request.ticket.has_value();
    plan.items.push_back(item);
    KeepPlanned(request);
    if (item.draws) FeedAhead(attempt_id);
  }
  if (!plan.items.empty() || !plan.aborts.empty()) plans.push_back(RecordOf(plan, now_us));
  if (plan.items.empty()) return plan;
  if (row_work.tokens > 0) ExpectLessGrowth();
  return plan;
}

ChainPlanner::State::IssuedPlan ChainPlanner::State::RecordOf(const Plan& plan, int64_t now_us) {
  const std::vector<int64_t> never(done.size(), kNeverUs);
  IssuedPlan record;
  record.number = plan.number;
  record.issued_us = now_us;
  record.done_us = record.compute_us = never;
  for (const PlanItem& item : plan.items) {
    record.work.Add(item.token_begin, item.token_count);
    if (item.draws) record.draws.push_back(item.attempt_id);
    Request& request = requests.at(item.attempt_id);
    if (item.token_begin >= request.read_tokens) continue;  // A decode step.
    record.has_chunks = true;
    if (!request.text.empty()) continue;  // PromptDone has told how its prompt was computed.
    record.chunks.emplace_back(item.attempt_id, request.outcome.chunks.size());
    request.outcome.chunks.push_back(
        {item.token_begin, item.token_count, std::vector<PlanDone>(done.size())});
  }
  for (const StageCost& cost : costs) record.predicted_us.push_back(cost.Micros(record.work));
  return record;
}

// ---- When plans are issued ----

bool ChainPlanner::State::MayIssue() const {
  return up && issued - done.back() < static_cast<uint64_t>(limits.plan_window) &&
         issued - done.front() < static_cast<uint64_t>(limits.stage0_lead) &&
         PlansThatDraw() < Slots();
}

// Until when the next plan stays open for prompts that come. In a chain of one stage that is
// shortly before the plan that runs is predicted to end. The stage's report ends the wait, too, but
// then the stage idles until the plan has reached it. So chains of several stages, whose plans are
// shorter, don't wait. Decode steps alone, behind which only a plan that feeds ahead comes, are
// expected to take as long as those before them.
int64_t ChainPlanner::State::HeldUntilUs() const {
  if (done.size() > 1 || plans.empty() || done.front() == issued || !aborts_due.empty()) return 0;
  const IssuedPlan& last = plans.back();
  if (last.has_chunks ? last.predicted_us.empty() : last.draws.empty()) return 0;
  const int64_t begin_us = std::max(last.issued_us, last_done_us.front());
  const int64_t predicted_us =
      last.has_chunks ? static_cast<int64_t>(last.predicted_us.front()) : last_step_us;
  const int64_t lead_us = last.has_chunks ? kIssueLeadUs : kStepIssueLeadUs;
  return begin_us + predicted_us - predicted_us / kIssueLeadPart - lead_us;
}

void ChainPlanner::State::IssuePlans(int64_t now_us) {
  held_until_us = kNeverUs;
  while (MayIssue()) {
    if (const int64_t until_us = HeldUntilUs(); now_us < until_us) {
      Covered<"planner: a plan waits for the one that runs">();
      held_until_us = until_us;
      return;
    }
    Plan plan = BuildPlan(now_us);
    if (plan.items.empty() && plan.aborts.empty()) return;
    ++issued;
    BATON_CHECK(plan.number == issued) << plan.number << " after " << issued - 1;
    Emit(IssuePlan{std::move(plan), std::exchange(row_waits_us, {})});
  }
}

}  // namespace baton::prefill
