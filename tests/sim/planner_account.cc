#include "tests/sim/planner_account.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton::sim {
namespace {

// Multiple of the previous stage's time for the same tokens (planner_progress.cc).
constexpr int64_t kSlowerStage = 20;

}  // namespace

void PlannerAccount::Saw(const prefill::PlannerEvent& event,
                         const std::vector<prefill::PlannerAction>& actions,
                         const prefill::ChainPlanner& planner) {
  asked_.reset();
  std::visit([this](const auto& e) { Hear(e); }, event);
  HearTime();
  const auto [late_stage, late_us] = NextOverdue();
  const bool overdue = up_ && !failed_ && late_us <= world_.now_us();
  for (const prefill::PlannerAction& action : actions) {
    std::visit([this](const auto& a) { See(a); }, action);
    if (!world_.violation().empty()) return;
  }
  for (const auto& [attempt_id, cause] : std::exchange(ends_due_, {})) {
    Complain(attempt_id, "I2: goes on after its end");
  }
  if (overdue && !failed_) {
    world_.Violate(
        absl::StrCat("planner of ", self_, " waits for stage ", late_stage, " for ever"));
  }
  NoteOver();
  CheckLoad(planner);
  CheckTimer(planner);
  Forget();
}

void PlannerAccount::Complain(uint64_t attempt_id, const std::string& what) {
  world_.Violate(absl::StrCat("planner of ", self_, ", attempt ", attempt_id, ": ", what));
}

// ---- Events ----

void PlannerAccount::Hear(const prefill::ChainUp& event) {
  up_ = true;
  failed_ = false;
  epoch_ = event.epoch;
  issued_ = 0;
  done_.assign(static_cast<size_t>(event.stages), 0);
  by_rank_.assign(done_.size(), std::vector<uint64_t>(static_cast<size_t>(event.ranks), 0));
  last_done_us_.assign(static_cast<size_t>(event.stages), world_.now_us());
  of_.clear();
}

void PlannerAccount::Hear(const prefill::ChainDown& event) {
  if (!std::exchange(up_, false)) return;
  for (const auto& [attempt_id, prompt] : prompts_) {
    if (!prompt.finished) MustEnd(attempt_id, {event.reason.code(), IsEndedByDrain(event.reason)});
  }
}

void PlannerAccount::Hear(const prefill::StartRequested& event) {
  if (prompts_.contains(event.attempt_id)) return;
  asked_ = event.attempt_id;
  Prompt& prompt = prompts_[event.attempt_id];
  prompt.tokens = event.prompt_tokens;
  prompt.deadline_us = event.deadline_us;
  prompt.arrived_us = world_.now_us();
  if (draining_) {
    ++drained_.refused_total;
    MustEnd(event.attempt_id, {absl::StatusCode::kUnavailable, /*by_drain=*/true});
  } else if (!up_) {
    MustEnd(event.attempt_id, {absl::StatusCode::kUnavailable, /*by_drain=*/false});
  }
}

void PlannerAccount::Hear(const prefill::AbortRequested& event) {
  const auto found = prompts_.find(event.attempt_id);
  if (found == prompts_.end() || found->second.finished) return;
  MustEnd(event.attempt_id, {event.reason.ok() ? absl::StatusCode::kCancelled : event.reason.code(),
                             IsEndedByDrain(event.reason)});
}

void PlannerAccount::Hear(const prefill::StagePlanDone& event) {
  if (!up_ || event.epoch != epoch_) return;
  const auto stage = static_cast<size_t>(event.stage);
  std::vector<uint64_t>& by_rank = by_rank_[stage];
  uint64_t& by_this = by_rank[static_cast<size_t>(event.rank)];
  if (event.done.number <= by_this) return;
  by_this = event.done.number;
  Done& done = of_[{event.done.number, event.stage}];
  const bool is_first = done.ranks == 0;
  // The others have waited for who came last.
  done.compute_us =
      is_first ? event.done.compute_us : std::min(done.compute_us, event.done.compute_us);
  done.wait_us = is_first ? event.done.wait_us : std::min(done.wait_us, event.done.wait_us);
  done.at_us = world_.now_us();
  if (++done.ranks < topology_.ranks) return;
  done_[stage] = event.done.number;
  last_done_us_[stage] = world_.now_us();
}

const PlannerAccount::Done* PlannerAccount::FindDone(uint64_t plan, int stage) const {
  const auto found = of_.find({plan, stage});
  return found == of_.end() || found->second.ranks < topology_.ranks ? nullptr : &found->second;
}

void PlannerAccount::Hear(const prefill::StageRequestClosed& event) {
  const auto found = prompts_.find(event.closed.attempt_id);
  if (!up_ || event.epoch != epoch_ || found == prompts_.end() ||
      found->second.opened_us == kNeverUs) {
    return;
  }
  Prompt& prompt = found->second;
  const std::pair place(event.stage, event.rank);
  if (!prompt.closed.emplace(place, event.closed.status.ok()).second) return;
  prompt.transfer_us = std::max(prompt.transfer_us, event.closed.kv_transfer_us);
  prompt.exposed_us = std::max(prompt.exposed_us, event.closed.kv_exposed_us);
  if (event.closed.status.ok() || prompt.finished) return;
  MustEnd(event.closed.attempt_id,
          {event.closed.status.code(), IsEndedByDrain(event.closed.status)});
}

void PlannerAccount::Hear(const prefill::DrainBegan& event) {
  draining_ = true;
  drain_ends_us_ = std::min(drain_ends_us_, event.deadline_us);
}

void PlannerAccount::HearTime() {
  for (const auto& [attempt_id, prompt] : prompts_) {
    if (prompt.finished || ends_due_.contains(attempt_id)) continue;
    if (prompt.deadline_us <= world_.now_us()) {
      MustEnd(attempt_id, {absl::StatusCode::kDeadlineExceeded, false});
    }
  }
}

// ---- What it does ----

void PlannerAccount::See(const prefill::IssuePlan& action) {
  const prefill::Plan& plan = action.plan;
  issued_ = plan.number;
  for (const prefill::PlanOpen& open : plan.opens) {
    prompts_[open.attempt_id].opened_us = world_.now_us();
  }
  for (const prefill::PlanItem& item : plan.items) {
    Prompt& prompt = prompts_[item.attempt_id];
    prompt.planned += item.token_count;
    prompt.chunks.push_back({plan.number, item.token_begin, item.token_count});
    prompt.last_plan = plan.number;
  }
  for (const uint64_t attempt_id : plan.aborts) {
    prompts_[attempt_id].aborted = true;
    prompts_[attempt_id].last_plan = plan.number;
  }
}

void PlannerAccount::See(const prefill::FinishRequest& action) {
  const auto found = prompts_.find(action.attempt_id);
  if (found == prompts_.end() || std::exchange(found->second.finished, true)) return;
  Prompt& prompt = found->second;
  const absl::Status& status = action.status;
  const auto due = ends_due_.find(action.attempt_id);
  // What is through by this very event is through, though a late loop hears of it after its time.
  const bool late =
      due != ends_due_.end() && due->second.code == absl::StatusCode::kDeadlineExceeded;
  if (status.ok() && (due == ends_due_.end() || late)) {
    if (late) ends_due_.erase(due);
    return CheckReport(action.attempt_id, prompt, action.outcome);
  }
  Cause right;
  if (due != ends_due_.end()) {
    right = due->second;
    ends_due_.erase(due);
  } else if (drain_ends_us_ <= world_.now_us()) {
    ++drained_.time_over_total;
    right = {absl::StatusCode::kUnavailable, /*by_drain=*/true};
  } else if (asked_ == action.attempt_id) {
    right.code = absl::StatusCode::kResourceExhausted;
    const bool never =
        (prompt.tokens + topology_.page_size - 1) / topology_.page_size > topology_.prefill_pages;
    const bool full = CountQueued() >= limits_.max_queued_requests;
    const bool hint = RetryHintMsOf(status) == (never ? 0 : kQueueRetryAfterMs);
    if (IsOverloaded(status) == never || !(never || full) || !hint) {
      Complain(action.attempt_id, "is refused for want of room that there is, or never will be");
    }
  }
  if (status.code() == right.code && IsEndedByDrain(status) == right.by_drain) return;
  Complain(action.attempt_id,
           absl::StrCat("ends with ", status.ToString(), ", expected ",
                        absl::StatusCodeToString(right.code), right.by_drain ? " by a drain" : ""));
}

void PlannerAccount::CheckReport(uint64_t attempt_id, const Prompt& prompt,
                                 const prefill::PrefillOutcome& outcome) {
  const int last_stage = static_cast<int>(done_.size()) - 1;
  const Done* const last = FindDone(prompt.chunks.back().plan, last_stage);
  if (last == nullptr) return Complain(attempt_id, "is complete and its last plan is not");
  bool right = outcome.queue_us == prompt.opened_us - prompt.arrived_us &&
               outcome.compute_us == last->at_us - prompt.opened_us &&
               outcome.kv_transfer_us == prompt.transfer_us &&
               outcome.kv_exposed_us == prompt.exposed_us &&
               outcome.chunks.size() == prompt.chunks.size();
  for (size_t i = 0; right && i < prompt.chunks.size(); ++i) {
    right = Timed(prompt.chunks[i], outcome.chunks[i]);
  }
  if (!right) Complain(attempt_id, "has a report of other times than it took");
}

bool PlannerAccount::Timed(const Chunk& chunk, const prefill::ChunkTiming& timing) const {
  if (timing.token_begin != chunk.token_begin || timing.token_count != chunk.token_count ||
      timing.stages.size() != done_.size()) {
    return false;
  }
  for (size_t stage = 0; stage < done_.size(); ++stage) {
    const Done* const done = FindDone(chunk.plan, static_cast<int>(stage));
    const prefill::PlanDone& told = timing.stages[stage];
    if (done == nullptr || told.number != chunk.plan || told.compute_us != done->compute_us ||
        told.wait_us != done->wait_us) {
      return false;
    }
  }
  return true;
}

void PlannerAccount::See(const prefill::FailChain& action) {
  if (ClosingDueUs() <= world_.now_us() && absl::IsUnavailable(action.status)) {
    if (!std::exchange(failed_, true)) return;
  }
  const auto [stage, due_us] = NextOverdue();
  const std::vector<uint64_t>& ranks = by_rank_[static_cast<size_t>(action.stage)];
  const auto last = static_cast<int>(std::min_element(ranks.begin(), ranks.end()) - ranks.begin());
  if (std::exchange(failed_, true) || due_us > world_.now_us() || action.stage != stage ||
      action.rank != last || !absl::IsUnavailable(action.status)) {
    world_.Violate(absl::StrCat("planner of ", self_, " gives stage ", action.stage,
                                " up too early, or another one"));
  }
}

// ---- What must be true afterwards ----

uint64_t PlannerAccount::DoneEverywhere() const {
  return done_.empty() ? 0 : *std::min_element(done_.begin(), done_.end());
}

std::pair<int, int64_t> PlannerAccount::NextOverdue() const {
  std::pair<int, int64_t> next{-1, kNeverUs};
  for (size_t stage = 1; stage < done_.size(); ++stage) {
    const uint64_t plan = done_[stage] + 1;
    const Done* const before = FindDone(plan, static_cast<int>(stage) - 1);
    if (before == nullptr) continue;
    int64_t fastest_us = before->compute_us;
    for (int earlier = 0; earlier + 1 < static_cast<int>(stage); ++earlier) {
      const Done* const found = FindDone(plan, earlier);
      if (found != nullptr) fastest_us = std::min(fastest_us, found->compute_us);
    }
    // Ranks that wait for one another in a sum say so before.
    const int64_t group_us = topology_.ranks > 1 ? limits_.plan_grace_us / 3 : 0;
    const int64_t due_us = std::max(before->at_us, last_done_us_[stage]) + limits_.plan_grace_us +
                           group_us + kSlowerStage * fastest_us;
    const bool first = next.first < 0 || (due_us < next.second && next.second > world_.now_us());
    if (first) next = {static_cast<int>(stage), due_us};
  }
  return next;
}

// They are not waited for, and the stages only have to close them.
void PlannerAccount::NoteOver() {
  for (auto& [attempt_id, prompt] : prompts_) {
    const bool told = prompt.aborted || prompt.planned == prompt.tokens;
    const bool over = up_ && prompt.finished && prompt.opened_us != kNeverUs && told &&
                      DoneEverywhere() >= prompt.last_plan;
    if (over && prompt.over_us == kNeverUs) prompt.over_us = world_.now_us();
  }
}

int64_t PlannerAccount::ClosingDueUs() const {
  const auto places = done_.size() * static_cast<size_t>(topology_.ranks);
  int64_t due_us = kNeverUs;
  for (const auto& [attempt_id, prompt] : prompts_) {
    if (prompt.over_us == kNeverUs || prompt.closed.size() == places) continue;
    due_us = std::min(due_us, prompt.over_us + limits_.close_grace_us);
  }
  return due_us;
}

int PlannerAccount::CountQueued() const {
  return static_cast<int>(std::count_if(prompts_.begin(), prompts_.end(), [](const auto& entry) {
    return !entry.second.finished && entry.second.opened_us == kNeverUs;
  }));
}

void PlannerAccount::Forget() {
  std::erase_if(prompts_, [this](const auto& entry) {
    const Prompt& prompt = entry.second;
    return prompt.finished && (!up_ || prompt.opened_us == kNeverUs);
  });
  // A report reaches back as far as its prompt's first plan.
  uint64_t first = DoneEverywhere() + 1;
  for (const auto& [attempt_id, prompt] : prompts_) {
    if (!prompt.chunks.empty() && !prompt.finished)
      first = std::min(first, prompt.chunks.front().plan);
  }
  of_.erase(of_.begin(), of_.lower_bound({first, 0}));
}

void PlannerAccount::CheckLoad(const prefill::ChainPlanner& planner) {
  const prefill::PlannerLoad load = planner.load();
  int64_t tokens = 0;
  for (const auto& [attempt_id, prompt] : prompts_) {
    if (!prompt.finished) tokens += prompt.tokens - prompt.planned;
  }
  const int in_flight = up_ ? static_cast<int>(issued_ - DoneEverywhere()) : 0;
  bool right = planner.up() == up_ && load.queued == CountQueued() &&
               load.queued_tokens == tokens && load.plans_in_flight == in_flight &&
               (up_ || (load.free_pages == 0 && load.owned_pages == 0 && load.open == 0));
  for (size_t stage = 0; up_ && stage < done_.size(); ++stage) {
    right = right && planner.plans_done(static_cast<int>(stage)) == done_[stage];
  }
  if (!right) {
    world_.Violate(absl::StrCat("planner of ", self_, " says that ", load.queued,
                                " prompts wait, with ", load.queued_tokens, " tokens, and ",
                                load.plans_in_flight, " plans run; it is ", CountQueued(), ", ",
                                tokens, " and ", in_flight));
  }
  if (planner.draining() != draining_ || planner.drain_counts() != drained_) {
    world_.Violate(absl::StrCat("planner of ", self_, " counts what its drain ends wrongly"));
  }
}

void PlannerAccount::CheckTimer(const prefill::ChainPlanner& planner) {
  int64_t due_us = up_ && !failed_ ? std::min(NextOverdue().second, ClosingDueUs()) : kNeverUs;
  for (const auto& [attempt_id, prompt] : prompts_) {
    if (!prompt.finished) due_us = std::min({due_us, prompt.deadline_us, drain_ends_us_});
  }
  if (planner.NextDeadlineUs() <= due_us) return;
  world_.Violate(absl::StrCat("planner of ", self_, " sleeps beyond what is due"));
}

}  // namespace baton::sim
