// Who has which part of a plan: the rule that chain_planner.h states, plan by plan.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/planner_witness.h"

namespace baton::sim {

namespace {

constexpr double kShorterShare = 2;  // Share of a plan, as the planner's header says.
// Whose time is so near to another's is as short as that.
constexpr double kAsShort = 0.98;
// Which stage sets the prices, and for how many tokens, is known to a page.
constexpr double kPriceSlack = 1.05;

}  // namespace

double PlannerWitness::InPages(double tokens) const {
  return std::ceil(tokens / topology_.page_size) * topology_.page_size;
}

// Where the rule's own sizes follow times, shares do.
void PlannerWitness::Learn(const std::vector<prefill::LearnedCost>& costs) {
  by_time_ = limits_.chunk_rule == ChunkRule::kOptimal && !costs.empty() &&
             std::all_of(costs.begin(), costs.end(),
                         [](const auto& stage) { return stage.cost.has_value(); });
  measures_ = {{.token_us = 1}};
  if (!by_time_) return;
  measures_.clear();
  for (const prefill::LearnedCost& stage : costs) {
    measures_.push_back(*stage.cost);
    measures_.back().overhead_us = 0;
  }
}

// For one page of a prompt, or the rest if that is less.
double PlannerWitness::PageMicros(const StageCost& measure, int begin, int tokens) const {
  return measure.Micros(begin, std::min(tokens, topology_.page_size));
}

PlannerWitness::Size PlannerWitness::SizeOf(const StageCost& measure, const prefill::Plan& plan,
                                            uint64_t leader, uint64_t wants) const {
  double together = 0;
  double others = 0;
  double dearest = 0;
  for (const prefill::PlanItem& item : plan.items) {
    const double takes = measure.Micros(item.token_begin, item.token_count);
    together += takes;
    if (item.attempt_id == leader) continue;
    others += takes;
    dearest = std::max(dearest, PageMicros(measure, item.token_begin, item.token_count));
  }
  // So many tokens of the leader would have taken as long: attention x^2 + linear x = rest.
  const double prefix = requests_.at(leader).planned;
  const double rest = together - measure.prefix_us * prefix;
  const double linear = measure.token_us + 2 * measure.attention_us * prefix;
  if (rest <= 0 || linear + measure.attention_us <= 0) return {};
  const double root = std::sqrt(linear * linear + 4 * measure.attention_us * rest);
  const double planned = 2 * rest / (linear + root);
  const double unit = planned / together;
  Size size = {planned, others * unit, dearest * unit, 0};
  if (wants != 0) {
    const Request& request = requests_.at(wants);
    size.next_page = unit * PageMicros(measure, request.planned, request.left());
  }
  return size;
}

// What one has left takes less than what the other has, `given` tokens apart, by every measure.
bool PlannerWitness::Shorter(const Request& one, const Request& other, int given) const {
  if (one.left() == 0 || other.left() <= given) return false;
  return std::all_of(measures_.begin(), measures_.end(), [&](const StageCost& measure) {
    return measure.Micros(one.planned, one.left()) <
           (by_time_ ? kAsShort : 1) * measure.Micros(other.planned + given, other.left() - given);
  });
}

// The oldest open prompt with tokens left; 0: none.
uint64_t PlannerWitness::Leader() const {
  uint64_t leader = 0;
  for (const auto& [attempt_id, request] : requests_) {
    if (!request.open || request.failed || request.fully_planned()) continue;
    if (leader == 0 || request.order < requests_.at(leader).order) leader = attempt_id;
  }
  return leader;
}

// A waiting one, on what is free. Only the oldest may have the last of it.
bool PlannerWitness::MayBegin(uint64_t attempt_id) const {
  if (queue_.empty()) return false;
  const auto places = std::count_if(requests_.begin(), requests_.end(),
                                    [](const auto& entry) { return entry.second.open; });
  int free_pages = topology_.prefill_pages - static_cast<int>(owners_.size());
  auto free_places = limits_.max_open_requests - places;
  if (queue_.front() != attempt_id) {
    free_pages -= requests_.at(queue_.front()).sequence->prompt_pages;
    --free_places;
  }
  return requests_.at(attempt_id).sequence->prompt_pages <= free_pages && free_places > 0;
}

void PlannerWitness::SeeShares(const prefill::Plan& plan) {
  const uint64_t leader = Leader();
  const bool fixed = limits_.chunk_rule == ChunkRule::kFixed;
  const bool whole_prompts = fixed && limits_.chunk_tokens >= limits_.max_context_tokens;
  if (leader == 0 || whole_prompts) return;
  std::map<uint64_t, int> tokens;
  for (const prefill::PlanItem& item : plan.items) tokens[item.attempt_id] += item.token_count;
  const bool goes_on = tokens[leader] < requests_.at(leader).left();
  if (!limits_.shares_plans) {
    if (goes_on && tokens.size() > 1) Complain(leader, "leads, and others have tokens of its plan");
    return;
  }
  const uint64_t wants = Wants(leader, tokens);
  const double slack = by_time_ ? kPriceSlack : 1;
  Size most;  // By the measure that says most, and by the one that says least.
  Size least = {1e18, 1e18};
  for (const StageCost& measure : measures_) {
    const Size size = SizeOf(measure, plan, leader, wants);
    most = {std::max(most.planned, size.planned), std::max(most.paid, size.paid),
            std::max(most.dearest, size.dearest), std::max(most.next_page, size.next_page)};
    least = {std::min(least.planned, size.planned), std::min(least.paid, size.paid)};
  }
  // A plan whose size is the rule's to choose is as large as what is in it, to a page that its
  // leader has not filled, and one that it had no room for.
  const double page = topology_.page_size;
  const double budget = fixed ? limits_.chunk_tokens : most.planned + 2 * page;
  const double share = (fixed ? limits_.chunk_tokens : least.planned) / kShorterShare;
  // What is kept from one plan to the next buys a page at most.
  const double kept = InPages(most.dearest * slack) + page;
  if (goes_on && least.paid > budget / kShorterShare * slack + kept) {
    Complain(leader, absl::StrCat("leads, and others have ", least.paid, " tokens of a plan of ",
                                  most.planned));
  }
  // The leader must have room for its part in a plan of so many tokens, whatever others pay.
  const int others = plan.TokenCount() - tokens[leader];
  const bool full = others > limits_.chunk_tokens - budget && by_time_;
  if (wants == 0 || full) {
    owed_tokens_ = 0;
    return;
  }
  owed_tokens_ = std::max(0.0, owed_tokens_ + share - InPages(most.paid * slack));
  if (owed_tokens_ > page + InPages(std::max(page, most.next_page * slack))) {
    Complain(wants, absl::StrCat("is shorter than ", leader, " and has waited for ", owed_tokens_,
                                 " tokens of its plans"));
  }
  for (const auto& [attempt_id, count] : tokens) {
    if (!goes_on || attempt_id == leader || count == 0) continue;
    const auto found = requests_.find(attempt_id);
    if (found != requests_.end() && Shorter(requests_.at(wants), found->second)) {
      Complain(wants, absl::StrCat("is shorter than ", attempt_id, ", which has its share"));
    }
  }
}

// The shortest prompt that has not all it wants; 0: none.
uint64_t PlannerWitness::Wants(uint64_t leader, const std::map<uint64_t, int>& tokens) const {
  const Request& oldest = requests_.at(leader);
  // A new leader has its first page before its plan is shared.
  const int first = oldest.planned == 0 ? topology_.page_size : 0;
  uint64_t wants = 0;
  for (const auto& [attempt_id, request] : requests_) {
    if (request.failed || !Shorter(request, oldest, first)) continue;
    if (!request.open && !MayBegin(attempt_id)) continue;
    const auto given = tokens.find(attempt_id);
    if (given != tokens.end() && given->second >= request.left()) continue;
    if (wants == 0 || Shorter(request, requests_.at(wants))) wants = attempt_id;
  }
  return wants;
}

}  // namespace baton::sim
