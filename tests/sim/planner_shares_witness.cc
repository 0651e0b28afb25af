// Who has which part of a plan: the rule that chain_planner.h states, plan by plan.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/planner_witness.h"

namespace baton::sim {

int PlannerWitness::InPages(int tokens) const {
  return (tokens + topology_.page_size - 1) / topology_.page_size * topology_.page_size;
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
  int paid = 0;
  for (const prefill::PlanItem& item : plan.items) {
    tokens[item.attempt_id] += item.token_count;
    if (item.attempt_id != leader) paid += InPages(item.token_count);
  }
  // A plan whose size is the rule's to choose is as large as what is in it, to a page.
  const int planned = plan.TokenCount();
  const int budget = fixed ? limits_.chunk_tokens : planned + topology_.page_size;
  const int share = (fixed ? budget : planned) / prefill::kShorterShare;
  const Request& oldest = requests_.at(leader);
  const bool goes_on = tokens[leader] < oldest.left();
  // What is kept from one plan to the next is a page at most.
  if (goes_on && paid > budget / prefill::kShorterShare + topology_.page_size) {
    Complain(leader,
             absl::StrCat("leads, and others have ", paid, " tokens of a plan of ", planned));
  }
  // A new leader has its first page before its plan is shared.
  const int longest = oldest.left() - (oldest.planned == 0 ? topology_.page_size : 0);
  uint64_t wants = 0;  // The shortest that has not all it wants.
  for (const auto& [attempt_id, request] : requests_) {
    if (request.failed || request.left() >= longest) continue;
    if (!request.open && !MayBegin(attempt_id)) continue;
    if (tokens[attempt_id] >= request.left()) continue;
    if (wants == 0 || request.left() < requests_.at(wants).left()) wants = attempt_id;
  }
  if (wants == 0) {
    owed_tokens_ = 0;
    return;
  }
  owed_tokens_ = std::max(0, owed_tokens_ + share - paid);
  if (owed_tokens_ > 2 * topology_.page_size) {
    Complain(wants, absl::StrCat("is shorter than ", leader, " and has waited for ", owed_tokens_,
                                 " tokens of its plans"));
  }
  for (const auto& [attempt_id, count] : tokens) {
    if (!goes_on || attempt_id == leader || count == 0) continue;
    const auto found = requests_.find(attempt_id);
    if (found != requests_.end() && found->second.left() > requests_.at(wants).left()) {
      Complain(wants, absl::StrCat("is shorter than ", attempt_id, ", which has its share"));
    }
  }
}

}  // namespace baton::sim
