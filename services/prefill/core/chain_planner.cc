#include "services/prefill/core/chain_planner.h"

#include <algorithm>
#include <climits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "services/prefill/core/planner_state.h"

namespace baton::prefill {
namespace {

PlannerLimits WithItsRule(PlannerLimits limits) {
  limits.chunk_rule = ChunkOptionsOf(limits).rule;
  return limits;
}

}  // namespace

ChunkOptions ChunkOptionsOf(const PlannerLimits& limits) {
  return WithinContext({.rule = limits.chunk_rule,
                        .page_size = limits.page_size,
                        .chunk_tokens = limits.chunk_tokens,
                        .max_context_tokens = limits.max_context_tokens,
                        .smooth_factor = limits.smooth_factor,
                        .later_tokens = limits.later_tokens});
}

ChainPlanner::State::State(const PlannerLimits& planner_limits)
    : limits(WithItsRule(planner_limits)),
      policy(MakeChunkPolicy(ChunkOptionsOf(planner_limits))) {}

void ChainPlanner::State::On(const ChainUp& event, int64_t now_us) {
  BATON_CHECK(!up) << "ChainUp without ChainDown before";
  BATON_CHECK(event.stages > 0 && event.ranks > 0 && event.page_count > 0)
      << event.stages << " stages of " << event.ranks << " ranks, " << event.page_count << " pages";
  up = true;
  epoch = event.epoch;
  // Every stage was quiet when it accepted the epoch, so all pages of the older one are free.
  pool.emplace(event.page_count);
  if (limits.caches) tree.emplace(limits.page_size);
  rows_in_want = 0;
  growth_share = growth_pages = 0;
  issued = 0;
  last_step_us = 0;
  done.assign(static_cast<size_t>(event.stages), 0);
  tallies.assign(static_cast<size_t>(event.stages), RankTally(event.ranks));
  ranks = event.ranks;
  last_done_us.assign(static_cast<size_t>(event.stages), now_us);
  chain_failed = false;
  KeepFitsFor(event);
  BeginGrants(event);
}

void ChainPlanner::State::On(const ChainDown& event, int64_t /*now_us*/) {
  if (!up) return;
  up = false;
  Covered<"planner: the chain goes down">();
  down_reason = event.reason;
  for (auto& [attempt_id, request] : requests) {
    Covered<"planner: the chain goes down under a request">();
    if (!request.finished) Finish(attempt_id, request, event.reason);
  }
  requests.clear();
  queue.clear();
  waiting_by_size.clear();
  shared_credit = 0;
  open.clear();
  aborts_due.clear();
  ready.clear();
  plans.clear();
  done.clear();
  grants.clear();
  free_slots.clear();
  tree.reset();
  pool.reset();
}

absl::Status ChainPlanner::State::Readiness() const {
  if (up) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the ", limits.name, " is down: ", down_reason.message()));
}

absl::Status ChainPlanner::State::CheckStart(const StartRequested& event) const {
  if (requests.count(event.attempt_id) != 0) {
    Covered<"planner: an attempt comes twice">();
    return absl::AlreadyExistsError(
        absl::StrCat("attempt ", event.attempt_id, " is in the ", limits.name, " already"));
  }
  if (!up) {
    Covered<"planner: a prompt comes while the chain is down">();
    return Readiness();
  }
  if (event.prompt_tokens < 1 || event.prompt_tokens > limits.max_context_tokens) {
    return InvalidField(
        "prompt_token_ids",
        absl::StrCat(event.prompt_tokens, " tokens, expected 1 to ", limits.max_context_tokens));
  }
  const Request request = RequestOf(event);
  const int pages = PagesFor(request.kv_tokens());
  if (!event.ticket.has_value()) {
    BATON_RETURN_IF_ERROR(CheckDecoded(event));
  } else if (event.ticket->prompt_tokens != event.prompt_tokens ||
             event.ticket->prompt_pages != pages) {
    return InvalidField("ticket",
                        absl::StrCat("reserves ", event.ticket->prompt_tokens, " tokens in ",
                                     event.ticket->prompt_pages, " pages, the prompt has ",
                                     event.prompt_tokens, " tokens in ", pages, " pages"));
  }
  // Also one that decodes may need so many in the end, and nothing would make room for it then.
  if (pages > pool->page_count()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the prompt needs ", pages, " pages",
                     event.ticket ? "" : absl::StrCat(" with ", request.token_limit, " new tokens"),
                     ", the ", limits.name, " has ", pool->page_count()));
  }
  const bool admissible = queue.empty() && HasRoomFor(ExpectedPages(request));
  if (!admissible && static_cast<int>(queue.size()) >= limits.max_queued_requests) {
    Covered<"planner: the queue is full">();
    return Overloaded(
        absl::ResourceExhaustedError(absl::StrCat(queue.size(), " requests wait for the ",
                                                  limits.name, "; no more are taken")),
        kQueueRetryAfterMs);
  }
  return absl::OkStatus();
}

ChainPlanner::State::Request ChainPlanner::State::RequestOf(const StartRequested& event) const {
  Request request;
  request.ticket = event.ticket;
  request.prompt_tokens = request.read_tokens = event.prompt_tokens;
  request.deadline_us = event.deadline_us;
  request.prompt_logprobs = event.prompt_logprobs;
  request.priority = event.priority;
  request.head_start_us = event.head_start_us;
  request.stop = event.stop;
  request.token_limit = TokenLimitOf(event);
  if (tree.has_value()) {
    request.tokens = event.tokens;
    request.cache_salt = event.cache_salt;
  }
  if (event.writers.empty()) return request;
  request.writers = event.writers;
  request.planned_tokens = request.prompt_tokens;  // By others.
  const int sources = event.writers[0].tensor_rank.size;
  request.foreign = sources != ranks;
  request.cache_salt = absl::StrCat(sources, ":", request.cache_salt);
  return request;
}

void ChainPlanner::State::On(const StartRequested& event, int64_t now_us) {
  absl::Status status = requests.contains(event.attempt_id) ? absl::OkStatus() : RefuseToBegin();
  if (status.ok()) status = CheckStart(event);
  if (!status.ok()) {
    Emit(FinishRequest{event.attempt_id, std::move(status), {}});
    return;
  }
  Request& request = requests[event.attempt_id] = RequestOf(event);
  request.arrived_us = now_us;
  request.turn.order = ++arrived;
  Enqueue(event.attempt_id);
  deadlines.emplace(event.deadline_us, event.attempt_id);
}

void ChainPlanner::State::On(const AbortRequested& event, int64_t /*now_us*/) {
  absl::Status reason = event.reason.ok() ? absl::CancelledError("aborted") : event.reason;
  Fail(event.attempt_id, std::move(reason));
}

void ChainPlanner::State::On(const StagePlanDone& event, int64_t now_us) {
  if (!up || !Current(event.epoch)) return;
  CheckPlace(event.stage, event.rank);
  const auto stage = static_cast<size_t>(event.stage);
  if (event.done.number > issued) return;  // Never asked for.
  for (const PlanDone& plan : tallies[stage].Add(event.rank, event.done)) {
    StageDone(stage, plan, now_us);
  }
  while (!plans.empty() && plans.front().number <= DoneEverywhere()) plans.pop_front();
  for (const uint64_t attempt_id : std::vector<uint64_t>(open)) {
    ReleaseIfClosed(attempt_id);
  }
}

ChainPlanner::State::Request* ChainPlanner::State::Find(uint64_t attempt_id) {
  const auto found = requests.find(attempt_id);
  return found == requests.end() ? nullptr : &found->second;
}

ChainPlanner::State::Request* ChainPlanner::State::FindUnfinished(uint64_t attempt_id) {
  Request* request = Find(attempt_id);
  return request == nullptr || request->finished ? nullptr : request;
}

void ChainPlanner::State::CheckPlace(int stage, int rank) const {
  BATON_CHECK(stage >= 0 && stage < static_cast<int>(done.size()) && rank >= 0 && rank < ranks)
      << "rank " << rank << " of stage " << stage;
}

void ChainPlanner::State::StageDone(size_t stage, const PlanDone& plan_done, int64_t now_us) {
  const uint64_t number = plan_done.number;
  Covered<"planner: a stage is done with a plan">();
  if (ranks > 1) Covered<"planner: all ranks of a stage are done with a plan">();
  done[stage] = number;
  last_done_us[stage] = now_us;
  const bool last_stage = stage + 1 == done.size();
  const std::vector<uint64_t>* draws = nullptr;
  for (IssuedPlan& plan : plans) {
    if (plan.number != number) continue;
    draws = &plan.draws;
    plan.done_us[stage] = now_us;
    plan.compute_us[stage] = plan_done.compute_us;
    if (!plan.has_chunks && !plan.draws.empty()) last_step_us = plan_done.compute_us;
    LearnFrom(plan, stage);
    for (const auto& [attempt_id, chunk] : plan.chunks) {
      Request& request = requests.at(attempt_id);  // Held until every stage is done with the plan.
      // What is late of a prompt that is computed is not told: its first token does not wait for
      // it.
      if (request.finished || request.decoding()) continue;
      request.outcome.chunks[chunk].stages[stage] = {
          number, plan_done.compute_us, plan_done.wait_us, {}, {}};
      if (!last_stage) continue;
      request.outcome.compute_us = now_us - request.first_plan_us;
      request.computed_tokens += request.outcome.chunks[chunk].token_count;
    }
  }
  if (!last_stage) return;
  for (const PromptTokens& told : plan_done.prompt_tokens) TakePromptTokens(told);
  if (draws != nullptr) TakeDrawn(*draws, plan_done, now_us);
}

void ChainPlanner::State::TakePromptTokens(const PromptTokens& told) {
  Request* request = FindUnfinished(told.attempt_id);
  if (request == nullptr) return;
  std::vector<SampledToken>& tokens = request->outcome.prompt_tokens;
  const size_t expected = tokens.size() + 1;
  const size_t end = static_cast<size_t>(told.first) + told.tokens.size();
  if (!request->prompt_logprobs || static_cast<size_t>(told.first) != expected ||
      end > static_cast<size_t>(request->prompt_tokens)) {
    Covered<"planner: prompt tokens out of turn">();
    return Fail(told.attempt_id, absl::InternalError(absl::StrCat(
                                     "the last stage tells of prompt tokens [", told.first, ", ",
                                     end, ") after ", expected, " of ", request->prompt_tokens)));
  }
  tokens.insert(tokens.end(), told.tokens.begin(), told.tokens.end());
}

absl::Status ChainPlanner::State::Request::CheckPromptTokens() const {
  const size_t expected = prompt_logprobs ? static_cast<size_t>(prompt_tokens) - 1 : 0;
  if (outcome.prompt_tokens.size() == expected) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the last stage told of ", outcome.prompt_tokens.size(),
                                          " prompt tokens, not of ", expected));
}

void ChainPlanner::State::On(const StageRequestClosed& event, int64_t /*now_us*/) {
  if (!up || !Current(event.epoch)) return;
  CheckPlace(event.stage, event.rank);
  const RequestClosed& closed = event.closed;
  Request* request = Find(closed.attempt_id);
  if (request == nullptr || !request->open) return;
  const auto place = static_cast<size_t>(event.stage) * static_cast<size_t>(ranks) +
                     static_cast<size_t>(event.rank);
  if (request->closed[place]) return;
  request->closed[place] = true;
  PrefillOutcome& outcome = request->outcome;
  outcome.kv_bytes += closed.kv_bytes;
  outcome.kv_transfer_us = std::max(outcome.kv_transfer_us, closed.kv_transfer_us);
  outcome.kv_exposed_us = std::max(outcome.kv_exposed_us, closed.kv_exposed_us);
  Covered<"planner: a stage closes a request">();
  if (!closed.status.ok()) Fail(closed.attempt_id, closed.status);
  ReleaseIfClosed(closed.attempt_id);
}

void ChainPlanner::State::Finish(uint64_t attempt_id, Request& request, absl::Status status,
                                 FinishReason reason) {
  BATON_CHECK(!request.finished) << "I2: attempt " << attempt_id << " finishes twice";
  request.finished = true;
  deadlines.erase({request.deadline_us, attempt_id});
  std::erase(ready, attempt_id);
  Emit(FinishRequest{attempt_id, std::move(status), std::exchange(request.outcome, {}), reason});
}

void ChainPlanner::State::Fail(uint64_t attempt_id, absl::Status status) {
  Request* request = FindUnfinished(attempt_id);
  if (request == nullptr) return;
  Finish(attempt_id, *request, std::move(status));
  if (!request->open) {
    Covered<"planner: a waiting request ends">();
    Dequeue(attempt_id);
    requests.erase(attempt_id);
    return;
  }
  Covered<"planner: an open request is aborted">();
  if (!request->retracting) Close(attempt_id, *request);
}

// Gives its pages back, once they are not used any more. It is ending.
void ChainPlanner::State::Close(uint64_t attempt_id, Request& request) {
  Revoke(request);
  if (request.told) {
    aborts_due.push_back(attempt_id);
  } else {
    ReleaseIfClosed(attempt_id);
  }
}

void ChainPlanner::State::ExpireDeadlines(int64_t now_us) {
  while (!deadlines.empty() && deadlines.begin()->first <= now_us) {
    const uint64_t attempt_id = deadlines.begin()->second;
    Covered<"planner: a deadline passes">();
    Fail(attempt_id, absl::DeadlineExceededError(
                         absl::StrCat("deadline passed ", WhatItAwaits(requests.at(attempt_id)))));
  }
}

// A stage that has given the request up waits for its final item or its abort, so one of the two
// must be out before the planner may forget it.
void ChainPlanner::State::ReleaseIfClosed(uint64_t attempt_id) {
  Request& request = requests.at(attempt_id);
  if (request.grant.has_value()) return;  // It may be written to.
  if (request.told ? !ToldInFull(request) : !request.ending()) return;
  if (std::find(request.closed.begin(), request.closed.end(), false) != request.closed.end()) {
    return;
  }
  if (DoneEverywhere() < request.last_plan) return;
  if (request.retracting && !request.finished) return Requeue(attempt_id);
  if (!request.finished) Finish(attempt_id, request, request.CheckPromptTokens());
  ReleasePages(request);
  std::erase(open, attempt_id);
  std::erase(aborts_due, attempt_id);
  requests.erase(attempt_id);
}

ChainPlanner::ChainPlanner(const PlannerLimits& limits) : state_(std::make_unique<State>(limits)) {
  BATON_CHECK(limits.page_size > 0 && limits.max_context_tokens > 0 && limits.plan_window > 0 &&
              limits.stage0_lead > 0 && limits.max_open_requests > 0 &&
              limits.max_queued_requests >= 0 && limits.plan_grace_us > 0 &&
              limits.reserved_decode_tokens > 0 && limits.slot_requests > 0 &&
              limits.input_tokens >= limits.page_size && limits.extra_slots >= 0)
      << "planner limits";
  BATON_CHECK(limits.chunk_tokens >= limits.page_size) << "chunk_tokens " << limits.chunk_tokens;
}

ChainPlanner::~ChainPlanner() = default;

void ChainPlanner::Handle(const PlannerEvent& event, int64_t now_us,
                          std::vector<PlannerAction>& actions) {
  state_->actions = &actions;
  std::visit([&](const auto& e) { state_->On(e, now_us); }, event);
  state_->ExpireDeadlines(now_us);
  state_->EndDrain(now_us);
  state_->CheckProgress(now_us);
  state_->AdmitGrants(now_us);
  state_->IssuePlans(now_us);
  state_->actions = nullptr;
}

int64_t ChainPlanner::NextDeadlineUs() const {
  const int64_t due_us = std::min(state_->NextProgressUs(), state_->held_until_us);
  if (state_->deadlines.empty()) return due_us;  // Nothing is unfinished.
  return std::min({due_us, state_->drain_deadline_us, state_->deadlines.begin()->first});
}

absl::Status ChainPlanner::readiness() const { return state_->Readiness(); }

int ChainPlanner::max_plan_tokens() const {
  const PlannerLimits& limits = state_->limits;
  return state_->policy->max_plan_tokens() + (limits.decodes ? limits.max_open_requests : 0);
}

const BlockPool* ChainPlanner::pool() const {
  return state_->pool.has_value() ? &*state_->pool : nullptr;
}

bool ChainPlanner::draining() const { return state_->draining; }

DrainCounts ChainPlanner::drain_counts() const { return state_->drain_counts; }

uint64_t ChainPlanner::plans_done(int stage) const {
  const auto index = static_cast<size_t>(stage);
  return index < state_->done.size() ? state_->done[index] : 0;
}

PlannerLoad ChainPlanner::load() const {
  PlannerLoad load;
  load.queued = static_cast<int>(state_->queue.size());
  load.open = static_cast<int>(state_->open.size());
  load.queued_tokens = state_->UnplannedTokens();
  if (state_->pool.has_value()) {
    load.free_pages = state_->AvailablePages();
    load.owned_pages = state_->pool->page_count() - load.free_pages;
  }
  if (state_->tree.has_value()) {
    load.cached_pages = state_->tree->pages();
  }
  load.evicted_pages_total = state_->evicted_pages_total;
  load.retractions_total = state_->retractions_total;
  load.reused_pages_total = state_->reused_pages_total;
  load.plans_in_flight = static_cast<int>(state_->plans.size());
  for (const uint64_t attempt_id : state_->open) {
    const State::Request& request = state_->requests.at(attempt_id);
    if (request.ending()) {
      load.ending_pages += static_cast<int>(request.pages.size()) - request.prefix.pages;
    }
    if (request.computed_tokens == 0 || request.decoding()) continue;
    load.prompts.push_back({attempt_id, request.computed_tokens});
  }
  return load;
}

bool ChainPlanner::AtRest() const { return state_->requests.empty() && state_->plans.empty(); }

}  // namespace baton::prefill
