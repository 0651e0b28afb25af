// Requests that no pair could take when they came, or when their attempt failed or was refused:
// they wait in the order of their turns: by arrival, with a head start for priority. If no pair is
// ready they wait for one, for as long as one can still come (Membership::PairExpectedUntilUs, and
// for a moment after this router stood still) and at most `pairing_timeout_us`. If pairs are ready
// and have no room they wait for room, until their deadline. Never does the first one wait while a
// pair has room for it, and never is it overtaken: the small would starve the large.
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

absl::Status RouterCore::State::WhyNone(absl::Status status, uint32_t version) {
  if (!absl::IsNotFound(status) || version == 0) return status;
  return WithLeg(absl::UnavailableError(absl::StrCat(
                     "structured output, bounds of reasoning and texts that go on elsewhere need ",
                     "workers of protocol version ", version, ", and all that are ready are of an ",
                     "older one; try again when they have been upgraded")),
                 "router", "");
}

absl::Status RouterCore::State::MayWait() const {
  if (limits.pairing_timeout_us <= 0 || PairAwaitedUntilUs(now_us) == 0) {
    return NoPair("is ready");
  }
  if (table.CountOf(Phase::kWaiting) >= limits.max_waiting) {
    Covered<"router: too many requests wait">();
    return WithLeg(Overloaded(absl::ResourceExhaustedError(absl::StrCat(
                       table.CountOf(Phase::kWaiting), " requests wait for a pair of workers, ",
                       "the most that may (--max-queued-requests); try again later"))),
                   "router", "");
  }
  return absl::OkStatus();
}

void RouterCore::State::Wait(Transaction& txn) {
  Covered<"router: a request waits for a pair">();
  if (waiting.empty()) wait_for_room = membership.HasReadyPair();
  table.SetPhase(txn, Phase::kWaiting);
  txn.excused = false;
  table.ClearAttempt(txn);  // Its legs are closed and its load is no longer counted.
  table.SetTimer(txn, WaitsUntilUs(txn));
  waiting.emplace(txn.turn, txn.call_id);
}

int64_t RouterCore::State::WaitsUntilUs(const Transaction& txn) const {
  if (wait_for_room) return txn.deadline_us;
  return std::min(txn.deadline_us, now_us + limits.pairing_timeout_us);
}

// The last pair is gone, or the first is there: what all of them wait for is another thing.
void RouterCore::State::WaitFor(bool room) {
  if (wait_for_room == room) return;
  wait_for_room = room;
  for (const auto& [turn, call_id] : waiting) {
    Transaction& txn = *table.OfCall(call_id);
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
    Transaction& txn = *table.OfCall(waiting.begin()->second);
    if (!ready) {
      Covered<"router: a request waits in vain">();
      Refuse(txn, NoPair("is ready"));
      continue;
    }
    absl::StatusOr<Choice> choice = ChooseAgain(txn);
    if (IsOverloaded(choice.status())) return WaitFor(/*room=*/true);
    if (choice.ok()) {
      waiting.erase(txn.turn);
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
  absl::StatusOr<Choice> any = pairing.Choose(membership.roster(), txn.ask(), nullptr);
  if (!any.ok()) return WhyNone(any.status(), txn.ask().protocol_version);
  return any;
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

absl::Status RouterCore::State::CheckWaiting() const {
  if (static_cast<int>(waiting.size()) != table.CountOf(Phase::kWaiting)) {
    return absl::InternalError("the queue for a pair is not the waiting requests");
  }
  const std::vector<Pair>& pairs = membership.ReadyPairs();
  if (waiting.empty() || pairs.empty()) return absl::OkStatus();
  if (!wait_for_room) {
    return absl::InternalError(
        absl::StrCat(waiting.size(), " requests wait for a pair while one is ready"));
  }
  const Transaction* first = table.OfCall(waiting.begin()->second);
  const bool fails_everywhere = first->failed.has_value() && pairs.size() == 1 &&
                                first->failed->HasChain(pairs[0]) &&
                                first->failed->HasDecode(pairs[0]);
  const FailedPair* failed =
      first->failed.has_value() && !fails_everywhere ? &*first->failed : nullptr;
  if (!pairing.CouldTake(pairs, first->ask(), failed)) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("request ", first->request_id, " waits while there is room for it"));
}

}  // namespace baton::router
