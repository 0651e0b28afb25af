#include "tests/sim/planner_witness.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace baton::sim {

PlannerWitness::PlannerWitness(World& world, const Topology& topology, Oracle& oracle,
                               std::string self, const prefill::PlannerLimits& limits)
    : world_(world),
      topology_(topology),
      oracle_(oracle),
      self_(std::move(self)),
      limits_(limits) {}

void PlannerWitness::Complain(uint64_t attempt_id, const std::string& what) {
  world_.Violate(absl::StrCat("planner of ", self_, ", attempt ", attempt_id, ": ", what));
}

// ---- Events ----

void PlannerWitness::Before(const prefill::PlannerEvent& event) {
  std::visit([this](const auto& e) { Hear(e); }, event);
}

void PlannerWitness::Hear(const prefill::ChainUp& event) {
  up_ = true;
  failed_ = false;
  epoch_ = event.epoch;
  issued_ = 0;
  done_.assign(static_cast<size_t>(event.stages), 0);
  ranks_done_.assign(done_.size(), std::vector<uint64_t>(static_cast<size_t>(event.ranks), 0));
  if (event.stages != topology_.stages || event.ranks != topology_.ranks) {
    world_.Violate(absl::StrCat("planner of ", self_, " has a chain of another shape"));
  }
}

void PlannerWitness::Hear(const prefill::ChainDown& /*event*/) {
  if (!std::exchange(up_, false)) return;
  for (const auto& [attempt_id, request] : requests_) MustFail(attempt_id);
}

void PlannerWitness::Hear(const prefill::StartRequested& event) {
  if (requests_.contains(event.attempt_id)) return;  // The planner says so.
  Request& request = requests_[event.attempt_id];
  request.sequence = &oracle_.Of(prompt_id_);
  request.order = ++arrived_;
  request.deadline_us = event.deadline_us;
  request.prompt_logprobs = event.prompt_logprobs;
  if (!up_ || draining_) {
    failures_due_.insert(event.attempt_id);
  } else if (request.sequence->prompt_pages <= topology_.prefill_pages &&
             static_cast<int>(queue_.size()) < limits_.max_queued_requests &&
             event.deadline_us > world_.now_us()) {
    starts_due_.insert(event.attempt_id);
  }
  queue_.push_back(event.attempt_id);
}

void PlannerWitness::Hear(const prefill::AbortRequested& event) { MustFail(event.attempt_id); }

void PlannerWitness::MustFail(uint64_t attempt_id) {
  const auto found = requests_.find(attempt_id);
  if (found != requests_.end() && !found->second.finished) failures_due_.insert(attempt_id);
}

void PlannerWitness::Hear(const prefill::StagePlanDone& event) {
  if (!up_ || event.epoch != epoch_) return;
  std::vector<uint64_t>& ranks = ranks_done_[static_cast<size_t>(event.stage)];
  uint64_t& done = ranks[static_cast<size_t>(event.rank)];
  if (event.done.number == done + 1) {
    done = event.done.number;
  } else if (event.done.number > done) {
    world_.Violate(absl::StrCat("rank ", event.rank, " of stage ", event.stage, " of ", self_,
                                " skips plan ", done + 1));
  }
  done_[static_cast<size_t>(event.stage)] = *std::min_element(ranks.begin(), ranks.end());
}

void PlannerWitness::Hear(const prefill::StageRequestClosed& event) {
  const auto found = requests_.find(event.closed.attempt_id);
  if (!up_ || event.epoch != epoch_ || found == requests_.end() || !found->second.open) return;
  const bool well = event.closed.status.ok();
  const std::pair place(event.stage, event.rank);
  if (found->second.closed.emplace(place, well).second && !well) {
    MustFail(event.closed.attempt_id);
  }
}

void PlannerWitness::Hear(const prefill::DrainBegan& /*event*/) { draining_ = true; }

void PlannerWitness::Hear(const prefill::Tick& /*event*/) {}

// ---- What it does ----

void PlannerWitness::After(const std::vector<prefill::PlannerAction>& actions,
                           const prefill::ChainPlanner& planner) {
  Learn(planner.costs());
  for (const prefill::PlannerAction& action : actions) {
    // Plans are made last, on what the event has set free.
    if (std::holds_alternative<prefill::IssuePlan>(action)) Release();
    std::visit([this](const auto& a) { See(a); }, action);
    if (!world_.violation().empty()) return;  // What follows would rest on it.
  }
  for (const uint64_t attempt_id : std::exchange(failures_due_, {})) {
    Complain(attempt_id, "I2: was aborted, given up or refused, and nobody is told");
  }
  starts_due_.clear();
  Release();
  if (!up_) {
    requests_.clear();
    queue_.clear();
    owners_.clear();
    owed_tokens_ = 0;
  }
  CheckRequests();
  CheckIdle(planner.load());
  CheckPages(planner.load());
}

void PlannerWitness::See(const prefill::IssuePlan& action) {
  const prefill::Plan& plan = action.plan;
  if (!up_ || plan.epoch != epoch_ || plan.number != issued_ + 1) {
    return world_.Violate(absl::StrCat("planner of ", self_, ": plan ", plan.number, " of epoch ",
                                       plan.epoch, " follows plan ", issued_, " of ", epoch_));
  }
  issued_ = plan.number;
  if (issued_ - done_.back() > static_cast<uint64_t>(limits_.plan_window) ||
      issued_ - done_.front() > static_cast<uint64_t>(limits_.stage0_lead)) {
    world_.Violate(absl::StrCat("planner of ", self_, ": more plans than the window allows"));
  }
  if (plan.TokenCount() > limits_.chunk_tokens) {
    world_.Violate(absl::StrCat("planner of ", self_, ": a plan of ", plan.TokenCount(),
                                " tokens, more than its buffers hold"));
  }
  for (const uint64_t attempt_id : plan.aborts) {
    const auto found = requests_.find(attempt_id);
    if (found == requests_.end() || !found->second.failed || !found->second.open ||
        std::exchange(found->second.abort_issued, true)) {
      Complain(attempt_id, "is aborted twice, or goes on, or is not in the chain");
      continue;
    }
    found->second.last_plan = plan.number;
  }
  for (const prefill::PlanOpen& open : plan.opens) SeeOpen(open);
  SeeShares(plan);
  for (const prefill::PlanItem& item : plan.items) SeeItem(plan, item);
  for (const auto& [attempt_id, request] : requests_) {
    if (request.open && request.planned == 0) Complain(attempt_id, "is opened without a chunk");
    if (request.open && request.failed && !request.abort_issued) {
      Complain(attempt_id, "has failed, and the next plan does not abort it");
    }
  }
}

void PlannerWitness::SeeOpen(const prefill::PlanOpen& open) {
  const auto found = requests_.find(open.attempt_id);
  const auto place = std::find(queue_.begin(), queue_.end(), open.attempt_id);
  if (found == requests_.end() || place == queue_.end()) {
    return Complain(open.attempt_id, "is opened twice, or after its end");
  }
  if (!MayBegin(open.attempt_id)) {
    Complain(open.attempt_id, absl::StrCat("is opened without pages or a place, or leaves none to ",
                                           queue_.front()));
  }
  queue_.erase(place);
  Request& request = found->second;
  request.open = true;
  if (static_cast<int>(open.pages.size()) != request.sequence->prompt_pages) {
    Complain(open.attempt_id, absl::StrCat("has ", open.pages.size(), " pages for a prompt of ",
                                           request.sequence->prompt_pages));
  }
  for (const int page : open.pages) {
    if (page < 0 || page >= topology_.prefill_pages ||
        !owners_.emplace(page, open.attempt_id).second) {
      Complain(open.attempt_id, absl::StrCat("I1: takes page ", page, ", which is not free"));
    }
  }
}

void PlannerWitness::SeeItem(const prefill::Plan& plan, const prefill::PlanItem& item) {
  const auto found = requests_.find(item.attempt_id);
  if (found == requests_.end() || !found->second.open || found->second.finished) {
    return Complain(item.attempt_id, "is planned, and has ended or was never opened");
  }
  Request& request = found->second;
  if (item.token_begin != request.planned || item.token_count < 1 ||
      item.token_begin % topology_.page_size != 0 || request.last_plan == plan.number) {
    Complain(item.attempt_id, absl::StrCat("tokens ", item.token_begin, "+", item.token_count,
                                           " come after ", request.planned));
  }
  request.planned += item.token_count;
  request.last_plan = plan.number;
  if (request.planned > request.sequence->inputs.prompt_tokens ||
      item.final != request.fully_planned()) {
    Complain(item.attempt_id, "is planned past its end, or its last chunk is not called so");
  }
}

void PlannerWitness::See(const prefill::FinishRequest& action) {
  const auto found = requests_.find(action.attempt_id);
  if (found == requests_.end() || std::exchange(found->second.finished, true)) {
    return Complain(action.attempt_id, "I2: ends twice, or was never begun");
  }
  Request& request = found->second;
  if (action.status.ok()) return CheckWhole(action, request);
  request.failed = true;
  failures_due_.erase(action.attempt_id);
  if (starts_due_.contains(action.attempt_id)) {
    Complain(action.attempt_id, absl::StrCat("a good start is refused: ", action.status.message()));
  }
  if (request.open) return;
  std::erase(queue_, action.attempt_id);
  requests_.erase(found);
}

void PlannerWitness::CheckWhole(const prefill::FinishRequest& action, const Request& request) {
  const bool all_well = std::all_of(request.closed.begin(), request.closed.end(),
                                    [](const auto& closed) { return closed.second; });
  if (!OverEverywhere(request) || !all_well || !request.fully_planned()) {
    Complain(action.attempt_id, "is called complete before every stage has sent all of it");
  }
  int covered = 0;
  for (const prefill::ChunkTiming& chunk : action.outcome.chunks) {
    if (chunk.token_begin == covered) covered += chunk.token_count;
    const bool timed = std::all_of(chunk.stages.begin(), chunk.stages.end(), [&](const auto& done) {
      return done.number > 0 && done.number == chunk.stages.front().number;
    });
    if (chunk.stages.size() != done_.size() || !timed) {
      Complain(action.attempt_id, "its report leaves a stage of a chunk out");
    }
  }
  const size_t bytes = topology_.DecodeLayout().BytesPerLayer() *
                       static_cast<size_t>(topology_.decode_ranks) *
                       static_cast<size_t>(topology_.layers * request.sequence->prompt_pages);
  if (action.outcome.kv_bytes != static_cast<int64_t>(bytes)) {
    Complain(action.attempt_id, absl::StrCat("its report counts ", action.outcome.kv_bytes,
                                             " bytes of KV, not ", bytes));
  }
  const int tokens = request.sequence->inputs.prompt_tokens;
  const int told = request.prompt_logprobs ? tokens - 1 : 0;
  if (covered != tokens || static_cast<int>(action.outcome.prompt_tokens.size()) != told) {
    Complain(action.attempt_id, absl::StrCat("its report covers ", covered, " tokens and tells of ",
                                             action.outcome.prompt_tokens.size(), " of ", tokens));
  }
}

void PlannerWitness::See(const prefill::FailChain& action) {
  if (std::exchange(failed_, true) || !up_ || action.stage < 0 || action.rank >= topology_.ranks) {
    world_.Violate(
        absl::StrCat("planner of ", self_, " fails its chain twice, or one that is down"));
  }
}

// ---- What must be true afterwards ----

bool PlannerWitness::OverEverywhere(const Request& request) const {
  if (!request.open || !(request.fully_planned() || request.abort_issued)) return false;
  return static_cast<int>(request.closed.size()) == topology_.members() &&
         *std::min_element(done_.begin(), done_.end()) >= request.last_plan;
}

void PlannerWitness::Release() {
  for (auto it = requests_.begin(); it != requests_.end();) {
    if (!OverEverywhere(it->second)) {
      ++it;
      continue;
    }
    if (!it->second.finished) Complain(it->first, "I2: is over on every stage and has no end");
    std::erase_if(owners_, [it](const auto& owner) { return owner.second == it->first; });
    it = requests_.erase(it);
  }
}

void PlannerWitness::CheckRequests() {
  for (const auto& [attempt_id, request] : requests_) {
    if (!request.finished && world_.now_us() >= request.deadline_us) {
      Complain(attempt_id, "I2: goes on after its deadline");
    }
  }
}

// A plan may be issued: then there must be nothing to put into it. A chain of one stage may hold
// the next plan back while it has one.
void PlannerWitness::CheckIdle(const prefill::PlannerLoad& load) {
  if (!up_ || issued_ - done_.back() >= static_cast<uint64_t>(limits_.plan_window) ||
      issued_ - done_.front() >=
          static_cast<uint64_t>(done_.size() == 1 ? 1 : limits_.stage0_lead)) {
    return;
  }
  int open = 0;
  for (const auto& [attempt_id, request] : requests_) {
    if (!request.open) continue;
    ++open;
    if (request.failed ? !request.abort_issued : !request.fully_planned()) {
      Complain(attempt_id, "could go on, and no plan is issued");
    }
  }
  if (queue_.empty() || open >= limits_.max_open_requests) return;
  if (requests_.at(queue_.front()).sequence->prompt_pages <= load.free_pages) {
    Complain(queue_.front(), "waits although there is room for it");
  }
}

void PlannerWitness::CheckPages(const prefill::PlannerLoad& load) {
  if (!up_) return;
  int owned = 0;
  for (const auto& [attempt_id, request] : requests_) {
    if (request.open) owned += request.sequence->prompt_pages;
  }
  if (load.owned_pages == owned && load.free_pages == topology_.prefill_pages - owned) return;
  world_.Violate(absl::StrCat("I1: planner of ", self_, " should own ", owned, " pages, and has ",
                              load.owned_pages, " and ", load.free_pages, " free"));
}

}  // namespace baton::sim
