// What must be true of a planner after every event, for tests.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/prefill/core/planner_state.h"

namespace baton::prefill {
namespace {

// I1: every page is free or belongs to exactly one open request, or to the cache.
template <class State>
absl::Status CheckPages(const State& state) {
  BATON_RETURN_IF_ERROR(state.pool->CheckInvariants());
  std::vector<bool> seen(static_cast<size_t>(state.pool->page_count()), false);
  int owned = 0;
  for (const auto& [attempt_id, request] : state.requests) {
    const int pages = static_cast<int>(request.pages.size());
    const int least = request.open ? state.PagesFor(request.planned_tokens) : 0;
    const int most = request.open ? state.PagesFor(request.kv_tokens()) : 0;
    if (pages < least || pages > most) {
      return absl::InternalError(absl::StrCat("I1: attempt ", attempt_id, " owns ", pages,
                                              " pages, not ", least, " to ", most));
    }
    for (int i = request.prefix.pages; i < pages; ++i) {
      const int page = request.pages[static_cast<size_t>(i)];
      if (seen[static_cast<size_t>(page)]) {
        return absl::InternalError(absl::StrCat("I1: page ", page, " has two owners"));
      }
      seen[static_cast<size_t>(page)] = true;
    }
    owned += pages - request.prefix.pages;
  }
  if (state.tree.has_value()) {
    BATON_RETURN_IF_ERROR(state.tree->CheckInvariants());
    owned += state.tree->pages();
  }
  if (owned == state.pool->owned_pages()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("I1: requests own ", owned, " pages, the pool says ",
                                          state.pool->owned_pages()));
}

template <class State>
absl::Status CheckQueue(const State& state) {
  const auto sooner = [&state](uint64_t one, uint64_t two) {
    return state.requests.at(one).turn < state.requests.at(two).turn;
  };
  const auto granted = static_cast<size_t>(
      std::count_if(state.queue.begin(), state.queue.end(),
                    [&state](uint64_t attempt_id) { return state.IsGranted(attempt_id); }));
  if (state.queue.size() != state.waiting_by_size.size() + granted ||
      !std::is_sorted(state.queue.begin(), state.queue.end(), sooner)) {
    return absl::InternalError(
        absl::StrCat(state.queue.size(), " requests wait in the order of turns, ",
                     state.waiting_by_size.size(), " in that of their size"));
  }
  if (!std::is_sorted(state.open.begin(), state.open.end(), sooner)) {
    return absl::InternalError("open requests are not in the order of turns");
  }
  // Counted in tokens, the next page of a prompt costs at most a page. Counted in time it may cost
  // more: a prompt with a longer prefix than the leader's costs more per token, and the credit is
  // in an earlier leader's tokens.
  const bool below_most = state.limits.chunk_rule == ChunkRule::kOptimal ||
                          state.shared_credit <= state.limits.page_size;
  if (state.shared_credit >= 0 && below_most) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a credit of ", state.shared_credit, " tokens"));
}

template <class State>
absl::Status CheckDrain(const State& state) {
  if (!state.draining || state.arrived == state.arrived_before_drain) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a draining chain has accepted ",
                                          state.arrived - state.arrived_before_drain, " requests"));
}

template <class State>
absl::Status CheckGrants(const State& state) {
  if (state.limits.granting.id.empty()) return absl::OkStatus();
  size_t held = 0;
  for (const auto& [attempt_id, request] : state.requests) {
    held += request.grant.has_value() ? 1 : 0;
    const bool granted = request.open && !request.writers.empty() && !request.ending();
    if (granted && (!request.grant.has_value() || request.grant->revoked || request.told)) {
      return absl::InternalError(
          absl::StrCat("I4: attempt ", attempt_id, " awaits KV without a grant"));
    }
    if (!request.grant.has_value()) continue;
    const auto found = state.grants.find(request.grant->generation);
    if (found == state.grants.end() || found->second != attempt_id) {
      return absl::InternalError(absl::StrCat("I4: attempt ", attempt_id, " and generation ",
                                              request.grant->generation,
                                              " don't belong to each other"));
    }
    if (request.drawn() > 0 && !request.grant->not_committed.none()) {
      return absl::InternalError(
          absl::StrCat("I3: attempt ", attempt_id, " has a token before its commit"));
    }
  }
  if (held == state.grants.size() &&
      held + state.free_slots.size() == static_cast<size_t>(state.limits.max_open_requests)) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("I1: ", held, " grants, ", state.grants.size(),
                                          " are known, ", state.free_slots.size(),
                                          " slots free of ", state.limits.max_open_requests));
}

}  // namespace

absl::Status ChainPlanner::CheckInvariants() const {
  const State& state = *state_;
  BATON_RETURN_IF_ERROR(CheckDrain(state));
  if (!state.up) {
    if (state.requests.empty() && state.plans.empty()) return absl::OkStatus();
    return absl::InternalError("I5: the chain is down and holds requests or plans");
  }
  BATON_RETURN_IF_ERROR(CheckPages(state));
  BATON_RETURN_IF_ERROR(CheckQueue(state));
  BATON_RETURN_IF_ERROR(CheckGrants(state));
  const uint64_t in_flight = state.issued - state.done.back();
  if (in_flight > static_cast<uint64_t>(state.limits.plan_window)) {
    return absl::InternalError(
        absl::StrCat(in_flight, " plans in flight, the window is ", state.limits.plan_window));
  }
  if (static_cast<int>(state.open.size()) > state.limits.max_open_requests) {
    return absl::InternalError(absl::StrCat(state.open.size(), " requests are open"));
  }
  size_t unfinished = 0;
  size_t open = 0;
  for (const auto& [attempt_id, request] : state.requests) {
    unfinished += request.finished ? 0 : 1;
    open += request.open ? 1 : 0;
    if (request.ending() && !request.open) {
      return absl::InternalError(
          absl::StrCat("I2: attempt ", attempt_id, " ended and still waits"));
    }
    if (request.last_plan > state.issued || request.planned_tokens > request.kv_tokens()) {
      return absl::InternalError(absl::StrCat("attempt ", attempt_id, " is planned past its end"));
    }
  }
  for (const uint64_t attempt_id : state.ready) {
    const State::Request& request = state.requests.at(attempt_id);
    size_t drawn = request.text.size();  // Or being drawn.
    for (const State::IssuedPlan& plan : state.plans) {
      if (!state.FeedsAhead() || plan.number <= state.done.back()) continue;
      drawn += static_cast<size_t>(std::count(plan.draws.begin(), plan.draws.end(), attempt_id));
    }
    if (!request.ending() && request.next_fed() + 1 == drawn) continue;
    return absl::InternalError(absl::StrCat("attempt ", attempt_id, " has no token to feed"));
  }
  if (unfinished != state.deadlines.size() || open != state.open.size() ||
      open + state.queue.size() != state.requests.size()) {
    return absl::InternalError("I2: requests and their indices disagree");
  }
  return absl::OkStatus();
}

}  // namespace baton::prefill
