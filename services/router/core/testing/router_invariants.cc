// What must be true of a router's core after every event, and what else tests ask of it.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/router/core/router_state.h"

namespace baton::router {
namespace {

template <class State>
absl::Status CheckDrain(const State& state) {
  for (const Pair& pair : state.membership.ReadyPairs()) {
    std::vector<InstanceRef> ranks = pair.followers;
    ranks.push_back(pair.decode);
    const bool all_stay =
        std::all_of(ranks.begin(), ranks.end(), [&state](const InstanceRef& rank) {
          const Worker* decode = state.membership.Find(rank);
          return decode != nullptr && !decode->draining;
        });
    if (!pair.chain.draining && all_stay) continue;
    return absl::InternalError(absl::StrCat("a pair of ", pair.chain.chain_id, " and ",
                                            pair.decode.id, " is ready and drains"));
  }
  if (state.now_us < state.drain_deadline_us || state.table.empty()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(state.table.size(), " requests go on after the router's drain"));
}

template <class State>
absl::Status CheckWaiting(const State& state) {
  if (static_cast<int>(state.waiting.size()) != state.table.CountOf(Phase::kWaiting)) {
    return absl::InternalError("the queue for a pair is not the waiting requests");
  }
  const std::vector<Pair> pairs = state.membership.ReadyPairs();
  if (state.waiting.empty() || pairs.empty()) return absl::OkStatus();
  if (!state.wait_for_room) {
    return absl::InternalError(
        absl::StrCat(state.waiting.size(), " requests wait for a pair while one is ready"));
  }
  const Transaction* first = state.table.OfCall(*state.waiting.Next());
  const bool fails_everywhere = first->failed.has_value() && pairs.size() == 1 &&
                                first->failed->HasChain(pairs[0]) &&
                                first->failed->HasDecode(pairs[0]);
  const FailedPair* failed =
      first->failed.has_value() && !fails_everywhere ? &*first->failed : nullptr;
  if (!state.pairing.CouldTake(pairs, first->ask(), failed)) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("request ", first->request_id, " waits while there is room for it"));
}

}  // namespace

absl::Status RouterCore::CheckInvariants() const {
  const State& state = *state_;
  BATON_RETURN_IF_ERROR(CheckDrain(state));
  BATON_RETURN_IF_ERROR(state.membership.CheckInvariants());
  BATON_RETURN_IF_ERROR(CheckWaiting(state));
  if (state.pairing.mended_total() > 0) {
    return absl::InternalError("work ended on a worker more often than it began");
  }
  return state.table.CheckInvariants();
}

bool RouterCore::AtRest() const {
  return state_->table.empty() && state_->waiting.empty() && state_->turns.empty() &&
         state_->pairing.AtRest();
}

absl::Status TransactionTable::CheckInvariants() const {
  std::array<int, kPhaseCount> counts{};
  size_t attempts = 0;
  for (const auto& [call_id, txn] : transactions_) {
    ++counts[static_cast<size_t>(txn.phase)];
    const auto named = call_of_request_.find(txn.request_id);
    if (named == call_of_request_.end() || named->second != call_id) {
      return absl::InternalError(
          absl::StrCat("request id ", txn.request_id, " belongs to two transactions"));
    }
    if (!timers_.contains({txn.timer_us, call_id})) {
      return absl::InternalError(absl::StrCat("request ", txn.request_id, " has no timer"));
    }
    const Attempt& attempt = txn.attempt;
    if (txn.phase == Phase::kWaiting) {
      if (attempt.id == 0 && !attempt.decode_open && !attempt.prefill_open) continue;
      return absl::InternalError(
          absl::StrCat("request ", txn.request_id, " waits for a pair and has one"));
    }
    if (attempt.id == 0) {
      return absl::InternalError(absl::StrCat("request ", txn.request_id, " has no attempt"));
    }
    const auto owner = call_of_attempt_.find(attempt.id);
    if (owner == call_of_attempt_.end() || owner->second != call_id) {
      return absl::InternalError(absl::StrCat("attempt ", attempt.id, " is not indexed"));
    }
    ++attempts;
    const bool decode_expected = txn.phase != Phase::kSettling;
    if (attempt.decode_open != decode_expected) {
      return absl::InternalError(absl::StrCat("request ", txn.request_id, ": decode leg is ",
                                              attempt.decode_open ? "open" : "closed"));
    }
    if (txn.phase == Phase::kSettling && !attempt.prefill_open) {
      return absl::InternalError(
          absl::StrCat("request ", txn.request_id, " waits for a prefill leg that has ended"));
    }
  }
  if (counts != phase_counts_) return absl::InternalError("phase counts don't match");
  if (attempts != call_of_attempt_.size() || timers_.size() != transactions_.size() ||
      call_of_request_.size() != transactions_.size()) {
    return absl::InternalError("an index holds more than the transactions");
  }
  return absl::OkStatus();
}

bool Pairing::AtRest() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& entry) { return entry.second.AtRest(); });
}

bool Pairing::CouldTake(const std::vector<Pair>& pairs, const Ask& ask,
                        const FailedPair* failed) const {
  std::optional<Class> best;
  bool room = false;
  for (const Pair& pair : pairs) {
    const bool chain = failed != nullptr && failed->HasChain(pair);
    const bool decode = failed != nullptr && failed->HasDecode(pair);
    const int64_t output = std::min<int64_t>(ask.max_tokens, OutputRoom(pair, ask.prompt_tokens));
    if ((chain && decode) || output < (ask.clip ? 1 : ask.max_tokens)) continue;
    const Class of = {ask.max_tokens - output,
                      failed != nullptr && (failed->leg == Role::kDecode ? decode : chain)};
    if (best.has_value() && *best < of) continue;
    if (!best.has_value() || of < *best) room = false;
    best = of;
    const PairLimits limits = LimitsOf(pair);
    const int64_t context_tokens = limits.AtFirst(ask.prompt_tokens, output);
    room = room || (HasRoom(Of(pair.chain.stage0), limits) &&
                    (limits.colocated || HasRoom(Of(pair.decode), limits, context_tokens)));
  }
  return room;
}

}  // namespace baton::router
