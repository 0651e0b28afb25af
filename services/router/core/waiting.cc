// Requests that no pair could take when they came, or when their attempt failed or was refused:
// they wait in a queue that shares fairly between tenants (fair_queue.h) and serves each tenant's
// in the order of their turns: by arrival, with a head start for priority. If no pair is ready they
// wait for one, for as long as one can still come (Membership::PairExpectedUntilUs, and for a
// moment after this router stood still) and at most `pairing_timeout_us`. If pairs are ready and
// have no room they wait for room, until their deadline or for `max_queue_us`. Never does the first
// one wait while a pair has room for it, and never is it overtaken: the small would starve the
// large.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "services/router/core/router_state.h"

namespace baton::router {

absl::Status RouterCore::State::NoPair(const std::string& what_happened) const {
  return WithLeg(
      absl::UnavailableError(absl::StrCat("no ", membership.WhatServes(), " ", what_happened, ": ",
                                          membership.WhatIsMissing())),
      "router", "");
}

bool RouterCore::State::ExpectsPair(int64_t at_us) const {
  return limits.pairing_timeout_us > 0 && PairAwaitedUntilUs(at_us) != 0;
}

absl::Status RouterCore::State::MayWait() const {
  if (!ExpectsPair(now_us)) return NoPair("is ready");
  if (table.CountOf(Phase::kWaiting) >= limits.max_waiting) {
    Covered<"router: too many requests wait">();
    return WithLeg(Overloaded(absl::ResourceExhaustedError(absl::StrCat(
                       table.CountOf(Phase::kWaiting), " requests wait for a pair of workers, ",
                       "the most that may (--max-queued-requests); try again later"))),
                   "router", "");
  }
  return absl::OkStatus();
}

// When the chain is given the prompt: by how much earlier it is to count as having come.
int64_t RouterCore::State::GiveTurn(Transaction& txn) {
  Attempt& attempt = txn.attempt;
  return turns.Give(attempt.pair.chain.stage0, attempt.id, txn.tenant, txn.tag, now_us);
}

// Texts that clients read already keep their place.
std::optional<uint64_t> RouterCore::State::GivesWayTo(const std::string& tenant) const {
  const std::optional<uint64_t> call_id = waiting.GivesWayTo(tenant);
  if (!call_id.has_value() || table.OfCall(*call_id)->tokens > 0) return std::nullopt;
  return call_id;
}

void RouterCore::State::GiveWay(uint64_t call_id) {
  ++totals.queue.gave_way_total;
  Finish(*table.OfCall(call_id),
         WithLeg(Overloaded(absl::ResourceExhaustedError(
                     "the queue is full, and the request's tenant has the most in it: it gave its "
                     "place to another tenant's request; try again later")),
                 "router", ""));
}

// Whether a new request may wait, for a pair or for room.
absl::Status RouterCore::State::MayQueue(const CallSubmitted& event) {
  const bool for_room = membership.HasReadyPair();
  absl::Status status = for_room ? MayWaitForRoom() : MayWait();
  if (IsOverloaded(status)) {
    if (!GivesWayTo(event.tenant).has_value()) {
      ++totals.queue.full_total;
      return status;
    }
    status = absl::OkStatus();
  }
  if (!status.ok() || !for_room || limits.max_queue_us == 0 || waiting.empty()) return status;
  const int64_t may_us = std::min(limits.max_queue_us, event.deadline_us - now_us);
  const auto ahead = static_cast<double>(waiting.CountAhead(event.tenant) + 1);
  const auto will_us = static_cast<int64_t>(ahead * leave_every_us.Or(0));
  if (will_us <= may_us) return absl::OkStatus();
  ++totals.queue.predicted_total;
  return Overloaded(absl::ResourceExhaustedError(absl::StrCat(
                        "the request would wait for some ", will_us / 1000, " ms; it may for ",
                        may_us / 1000, " ms, by its deadline and --max-queue-ms; try again later")),
                    std::max<int64_t>(1, (will_us - may_us) / 1000));
}

void RouterCore::State::Wait(Transaction& txn) {
  Covered<"router: a request waits for a pair">();
  if (waiting.empty()) {
    wait_for_room = membership.HasReadyPair();
    left_us = now_us;
  }
  table.SetPhase(txn, Phase::kWaiting);
  txn.excused = false;
  table.ClearAttempt(txn);  // Its legs are closed and its load is no longer counted.
  txn.waits_from_us = now_us;
  table.SetTimer(txn, WaitsUntilUs(txn));
  waiting.Add(txn.tenant, txn.turn, txn.call_id);
}

int64_t RouterCore::State::WaitsUntilUs(const Transaction& txn) const {
  if (wait_for_room) {
    const bool bounded = limits.max_queue_us > 0 && txn.tokens == 0;
    return bounded ? std::min(txn.deadline_us, txn.waits_from_us + limits.max_queue_us)
                   : txn.deadline_us;
  }
  return std::min(txn.deadline_us, now_us + limits.pairing_timeout_us);
}

// The last pair is gone, or the first is there: what all of them wait for is another thing.
void RouterCore::State::WaitFor(bool room) {
  if (wait_for_room == room) return;
  wait_for_room = room;
  for (const uint64_t call_id : waiting.All()) {
    Transaction& txn = *table.OfCall(call_id);
    txn.waits_from_us = now_us;
    table.SetTimer(txn, WaitsUntilUs(txn));
  }
}

// After every event: it may have made a pair ready, made room on one, or ended the time in which
// one is expected.
void RouterCore::State::ServeWaiting() {
  if (waiting.empty()) return;
  const bool ready = membership.HasReadyPair();
  if (!ready && PairAwaitedUntilUs(now_us) != 0) return WaitFor(/*room=*/false);
  while (!waiting.empty()) {
    Transaction& txn = *table.OfCall(*waiting.Next());
    if (!ready) {
      Covered<"router: a request waits in vain">();
      Refuse(txn, NoPair("is ready"));
      continue;
    }
    absl::StatusOr<Choice> choice = ChooseAgain(txn);
    if (IsOverloaded(choice.status())) return WaitFor(/*room=*/true);
    if (choice.ok()) {
      waiting.Remove(txn.tenant, txn.turn);
      leave_every_us.Add(static_cast<double>(now_us - std::exchange(left_us, now_us)));
      Begin(txn, *std::move(choice));
    } else {
      Finish(txn, WithLeg(choice.status(), "router", ""));
    }
  }
}

// A pair other than the one that failed if there is one, with room or not. Otherwise the same: its
// workers have been heard from since, so it was the connection that failed.
absl::StatusOr<Choice> RouterCore::State::ChooseAgain(const Transaction& txn) {
  if (txn.failed.has_value()) {
    auto other = pairing.Choose(membership.roster(), txn.ask(), &*txn.failed);
    if (!absl::IsNotFound(other.status())) return other;
  }
  return pairing.Choose(membership.roster(), txn.ask(), nullptr);
}

// After a failed attempt the error names that failure, then why no other pair could take over.
void RouterCore::State::Refuse(Transaction& txn, const absl::Status& no_pair) {
  if (!txn.failed.has_value()) return Finish(txn, no_pair);
  absl::Status status(txn.failure.code(),
                      absl::StrCat(txn.failure.message(), "; then ", no_pair.message()));
  // Who drains has not failed: its successor is late.
  if (IsEndedByDrain(txn.failure)) {
    if (txn.tokens > 0) ++totals.drain.worker_total;
    return Finish(txn, EndedByDrain(WithLeg(std::move(status), "router", "")));
  }
  Finish(txn, WithLeg(std::move(status), LegOf(txn.failure).value_or("router"),
                      InstanceOf(txn.failure).value_or("")));
}

void RouterCore::State::TimeOutWaiting(Transaction& txn) {
  if (txn.deadline_us > now_us && wait_for_room) {
    ++totals.queue.waited_total;
    return Refuse(txn,
                  WithLeg(Overloaded(absl::ResourceExhaustedError(absl::StrCat(
                              "waited for ", limits.max_queue_us / 1000, " ms for room, the ",
                              "longest that a request may (--max-queue-ms); try again ", "later"))),
                          "router", ""));
  }
  if (txn.deadline_us > now_us) {
    Covered<"router: waiting takes too long">();
    return Refuse(txn, NoPair(absl::StrCat("became ready within ", limits.pairing_timeout_us / 1000,
                                           " ms (--pairing-timeout-ms)")));
  }
  const std::string where =
      wait_for_room
          ? std::string("room: every prefill chain and decode service has as much as it takes")
          : absl::StrCat("a pair of workers: ", membership.WhatIsMissing());
  Finish(txn, WithLeg(absl::DeadlineExceededError(absl::StrCat(
                          "the request's deadline passed while it waited for ", where)),
                      "router", ""));
}

}  // namespace baton::router
