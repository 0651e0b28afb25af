// Requests that no ready pair could take when they came, or when their attempt failed: they wait,
// in the order of their arrival, for as long as a pair can still come
// (Membership::PairExpectedUntilUs) and at most `pairing_timeout_us`. Never is one waiting while a
// pair is ready.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/drain_status.h"
#include "common/base/planted_bug.h"
#include "common/base/status.h"
#include "services/router/core/router_state.h"

namespace baton::router {

absl::Status RouterCore::State::NoPair(const std::string& what_happened) const {
  return WithLeg(
      absl::UnavailableError(absl::StrCat("no pair of a prefill chain and a decode service ",
                                          what_happened, ": ", membership.WhatIsMissing())),
      "router", "");
}

absl::Status RouterCore::State::MayWait() const {
  if (limits.pairing_timeout_us <= 0 || membership.PairExpectedUntilUs(now_us) == 0) {
    return NoPair("is ready");
  }
  if (table.CountOf(Phase::kWaiting) >= limits.max_waiting) {
    return WithLeg(absl::ResourceExhaustedError(absl::StrCat(
                       table.CountOf(Phase::kWaiting), " requests wait for a pair of workers, ",
                       "the most that may (--max-queued-requests); try again later")),
                   "router", "");
  }
  return absl::OkStatus();
}

void RouterCore::State::Wait(Transaction& txn) {
  table.SetPhase(txn, Phase::kWaiting);
  table.ClearAttempt(txn);  // Its legs are closed and its work is off the books.
  table.SetTimer(txn, std::min(txn.deadline_us, now_us + limits.pairing_timeout_us));
  waiting.emplace(txn.order, txn.call_id);
}

void RouterCore::State::StopWaiting(Transaction& txn) {
  waiting.erase(txn.order);
  table.SetTimer(txn, txn.deadline_us);
}

// After every event: whatever it was, it may have made a pair ready, or ended the hope for one.
void RouterCore::State::ServeWaiting() {
  if (waiting.empty() || PlantedBug(Bug::kRouterForgetsWaiting)) return;
  const bool ready = !membership.ReadyPairs().empty();
  if (!ready && membership.PairExpectedUntilUs(now_us) != 0) return;
  // Served or refused: either way nobody waits afterwards.
  while (!waiting.empty()) {
    Transaction& txn = *table.OfCall(waiting.begin()->second);
    StopWaiting(txn);
    if (!ready) {
      Refuse(txn, NoPair("is ready"));
      continue;
    }
    absl::StatusOr<Pair> pair = ChooseAgain(txn);
    if (pair.ok()) {
      Begin(txn, *std::move(pair));
    } else {
      Finish(txn, WithLeg(pair.status(), "router", ""));
    }
  }
}

// A pair other than the one that failed if there is one. Otherwise the same: its workers have been
// heard from since, so it was the connection that failed.
absl::StatusOr<Pair> RouterCore::State::ChooseAgain(const Transaction& txn) {
  const std::vector<Pair>& pairs = membership.ReadyPairs();
  if (txn.failed.has_value()) {
    auto other = pairing.Choose(pairs, txn.prompt_tokens, txn.max_tokens, &*txn.failed);
    if (other.ok()) return other;
  }
  return pairing.Choose(pairs, txn.prompt_tokens, txn.max_tokens, nullptr);
}

// The client of a failed attempt hears what failed, and then that nobody could take its place.
void RouterCore::State::Refuse(Transaction& txn, const absl::Status& no_pair) {
  if (!txn.failed.has_value()) return Finish(txn, no_pair);
  absl::Status status(txn.failure.code(),
                      absl::StrCat(txn.failure.message(), "; then ", no_pair.message()));
  // Who drains has not failed: its successor is late.
  if (IsEndedByDrain(txn.failure)) {
    return Finish(txn, EndedByDrain(WithLeg(std::move(status), "router", "")));
  }
  Finish(txn, WithLeg(std::move(status), LegOf(txn.failure).value_or("router"),
                      InstanceOf(txn.failure).value_or("")));
}

void RouterCore::State::TimeOutWaiting(Transaction& txn) {
  StopWaiting(txn);
  if (txn.deadline_us > now_us) {
    return Refuse(txn, NoPair(absl::StrCat("became ready within ", limits.pairing_timeout_us / 1000,
                                           " ms (--pairing-timeout-ms)")));
  }
  Finish(txn, WithLeg(absl::DeadlineExceededError(absl::StrCat(
                          "the request's deadline passed while it waited for a pair of workers: ",
                          membership.WhatIsMissing())),
                      "router", ""));
}

}  // namespace baton::router
