// Refusals of workers that are full. They are no failed attempts: nothing has begun, and nothing is
// wrong with the pair. The request goes to another pair with room, or waits for some in the queue
// for a pair (waiting.cc), as long as the retry budget and the queue's bound allow and a pair is
// ready or expected; the worker is asked again when room may be there (learned_limit.h). Otherwise
// the client is told at once.
//
// Nor is it a failure when a decode service retracts what it has begun, for older requests of its.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "services/router/core/router_state.h"

namespace baton::router {
namespace {

// Behind the budget, so that a worker that always refuses and is always empty bounds itself.
constexpr int kMostRefusals = 16;

}  // namespace

absl::Status RouterCore::State::MayWaitForRoom() const {
  if (table.CountOf(Phase::kWaiting) < limits.max_waiting) return absl::OkStatus();
  return WithLeg(Overloaded(absl::ResourceExhaustedError(absl::StrCat(
                     "every prefill chain and decode service has as much as it takes, and ",
                     table.CountOf(Phase::kWaiting), " requests wait for room, the most that may ",
                     "(--max-queued-requests); try again later"))),
                 "router", "");
}

// What a client is told is the router's hint, not the worker's, which was meant for the router.
absl::Status RouterCore::State::TellOverload(const absl::Status& refusal) const {
  return Overloaded(
      absl::ResourceExhaustedError(absl::StrCat(refusal.message(), "; try again later")));
}

// The queue's bound is for those that have not been taken, and these have: limits.max_requests
// bounds them. Rejected: to end them with what failed while the queue is full, as drains of busy
// clusters then ended requests that nothing was wrong with.
bool RouterCore::State::MayWaitAgain() const { return limits.max_waiting > 0; }

bool RouterCore::State::TryRefusedAgain(Transaction& txn, Role blamed,
                                        const absl::Status& refusal) {
  const Pair& pair = txn.attempt.pair;
  const InstanceRef& worker = blamed == Role::kDecode ? pair.decode : pair.chain.stage0;
  ++totals.RetriesOf(blamed).refused_total;
  pairing.Refused(worker, RetryHintMsOf(refusal) * 1000, now_us);
  if (txn.refused >= kMostRefusals || txn.deadline_us <= now_us || !MayWaitAgain()) return false;
  if (!membership.HasReadyPair() && PairAwaitedUntilUs(now_us) == 0) {
    Covered<"router: what is refused has nowhere to go">();
    return false;
  }
  if (!TakeRetry()) return false;
  EndWork(txn);
  ++txn.refused;
  ++totals.RetriesOf(blamed).overload_total;
  Wait(txn);
  return true;
}

bool RouterCore::State::TakeRetry() {
  if (budget.Take(now_us)) return true;
  ++totals.budget_exhausted_total;
  return false;
}

}  // namespace baton::router
