// Leaving: of a worker, which the router lets go when no request needs it any more, and of the
// router itself.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "services/router/core/router_state.h"

namespace baton::router {

// ---- A worker's ----

void RouterCore::State::On(const DrainRequested& event) {
  absl::StatusOr<InstanceRef> worker = membership.Drain(event.instance_id);
  Emit(ReplyDrain{event.rpc_id, worker.status()});
  if (worker.ok()) AskHeartbeatOf(*worker);  // Whose answer says why.
}

// ---- The router's own ----

void RouterCore::State::On(const RouterDrainBegan& event) {
  drain_begun_us = std::min(drain_begun_us, now_us);
  refuse_from_us = std::min(refuse_from_us, now_us + event.settle_us);
  drain_deadline_us = std::min(drain_deadline_us, refuse_from_us + event.timeout_us);
}

absl::Status RouterCore::State::RefuseToBegin() {
  if (now_us < refuse_from_us) return absl::OkStatus();
  Covered<"router: a draining router refuses">();
  ++totals.drain.refused_total;
  return EndedByDrain(
      absl::UnavailableError("the router is shutting down; send the request again"));
}

void RouterCore::State::EndDrain() {
  if (now_us < drain_deadline_us) return;
  for (const uint64_t call_id : table.CallIds()) {
    Transaction& txn = *table.OfCall(call_id);
    CloseLegs(txn, "the router is leaving");
    if (txn.Complete()) {
      Finish(txn, txn.answer);
      continue;
    }
    Covered<"router: a drain ends a request">();
    ++totals.drain.time_over_total;
    Finish(txn, WithLeg(EndedByDrain(absl::UnavailableError(
                            "the router left before the request was done (--drain-timeout-ms); "
                            "send it again")),
                        "router", ""));
  }
}

int64_t RouterCore::State::NextDrainUs() const {
  if (now_us < refuse_from_us) return refuse_from_us;
  return table.empty() ? kNeverUs : drain_deadline_us;
}

RouterDrain RouterCore::drain(int64_t now_us) const {
  const State& state = *state_;
  if (state.drain_begun_us == kNeverUs) return RouterDrain::kServing;
  if (now_us < state.refuse_from_us) return RouterDrain::kSettling;
  return state.table.empty() ? RouterDrain::kDrained : RouterDrain::kRefusing;
}

}  // namespace baton::router
