#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/prefill/core/planner_state.h"

namespace baton::prefill {

// I1: every page is free or belongs to exactly one open request, or to the cache.
absl::Status ChainPlanner::State::CheckPages() const {
  BATON_RETURN_IF_ERROR(pool->CheckInvariants());
  std::vector<bool> seen(static_cast<size_t>(pool->page_count()), false);
  int owned = 0;
  for (const auto& [attempt_id, request] : requests) {
    const int pages = static_cast<int>(request.pages.size());
    const int least = request.open ? PagesFor(request.planned_tokens) : 0;
    const int most = request.open ? PagesFor(request.kv_tokens()) : 0;
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
  if (tree.has_value()) {
    BATON_RETURN_IF_ERROR(tree->CheckInvariants());
    owned += tree->pages();
  }
  if (owned == pool->owned_pages()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("I1: requests own ", owned, " pages, the pool says ", pool->owned_pages()));
}

absl::Status ChainPlanner::CheckInvariants() const {
  const State& state = *state_;
  BATON_RETURN_IF_ERROR(state.CheckDrain());
  if (!state.up) {
    if (state.requests.empty() && state.plans.empty()) return absl::OkStatus();
    return absl::InternalError("I5: the chain is down and holds requests or plans");
  }
  BATON_RETURN_IF_ERROR(state.CheckPages());
  BATON_RETURN_IF_ERROR(state.CheckQueue());
  BATON_RETURN_IF_ERROR(state.CheckGrants());
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
    if (request.decoding() && !request.retracting &&
        request.planned_tokens == request.prompt_tokens + request.drawn() - 1) {
      continue;
    }
    return absl::InternalError(absl::StrCat("attempt ", attempt_id, " has no token to feed"));
  }
  if (unfinished != state.deadlines.size() || open != state.open.size() ||
      open + state.queue.size() != state.requests.size()) {
    return absl::InternalError("I2: requests and their indices disagree");
  }
  return absl::OkStatus();
}

}  // namespace baton::prefill
