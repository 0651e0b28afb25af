// The end of a chain, told by its stage 0: what has been accepted goes through the chain to its
// last byte if the time suffices, nothing else comes in.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"
#include "common/base/drain_status.h"
#include "services/prefill/core/planner_state.h"

namespace baton::prefill {

void ChainPlanner::State::On(const DrainBegan& event, int64_t /*now_us*/) {
  if (!draining) arrived_before_drain = arrived;
  draining = true;
  drain_deadline_us = std::min(drain_deadline_us, event.deadline_us);
}

absl::Status ChainPlanner::State::RefuseToBegin() {
  if (!draining) return absl::OkStatus();
  Covered<"planner: a draining chain refuses">();
  ++drain_counts.refused_total;
  return EndedByDrain(absl::UnavailableError("this prefill chain drains and begins nothing new"));
}

// Rejected: to give back what waits in the queue when the drain begins, as decode does. Its pages
// are reserved on a decode service, and often no other chain is there to begin it sooner.
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
         EndedByDrain(absl::UnavailableError(
             "this prefill chain left before the prompt was through (--drain-timeout-ms)")));
  }
}

absl::Status ChainPlanner::State::CheckDrain() const {
  if (!draining || arrived == arrived_before_drain) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("a draining chain has accepted ", arrived - arrived_before_drain, " requests"));
}

}  // namespace baton::prefill
