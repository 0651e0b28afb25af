#include "services/router/core/transaction.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::router {

Transaction& TransactionTable::Add(Transaction transaction) {
  const uint64_t call_id = transaction.call_id;
  const auto [entry, added] = transactions_.emplace(call_id, std::move(transaction));
  BATON_CHECK(added) << "call " << call_id << " used twice";
  Transaction& txn = entry->second;
  call_of_request_[txn.request_id] = call_id;
  ++phase_counts_[static_cast<size_t>(txn.phase)];
  return txn;
}

void TransactionTable::Remove(uint64_t call_id) {
  const auto entry = transactions_.find(call_id);
  BATON_CHECK(entry != transactions_.end()) << "no transaction of call " << call_id;
  Transaction& txn = entry->second;
  ClearAttempt(txn);
  call_of_request_.erase(txn.request_id);
  --phase_counts_[static_cast<size_t>(txn.phase)];
  timers_.erase({txn.timer_us, call_id});
  transactions_.erase(entry);
}

Transaction* TransactionTable::OfCall(uint64_t call_id) {
  const auto entry = transactions_.find(call_id);
  return entry == transactions_.end() ? nullptr : &entry->second;
}

const Transaction* TransactionTable::OfCall(uint64_t call_id) const {
  const auto entry = transactions_.find(call_id);
  return entry == transactions_.end() ? nullptr : &entry->second;
}

Transaction* TransactionTable::OfRequest(const std::string& request_id) {
  const auto found = call_of_request_.find(request_id);
  return found == call_of_request_.end() ? nullptr : OfCall(found->second);
}

Transaction* TransactionTable::OfAttempt(uint64_t attempt_id) {
  const auto found = call_of_attempt_.find(attempt_id);
  return found == call_of_attempt_.end() ? nullptr : OfCall(found->second);
}

void TransactionTable::SetPhase(Transaction& transaction, Phase phase) {
  --phase_counts_[static_cast<size_t>(transaction.phase)];
  ++phase_counts_[static_cast<size_t>(phase)];
  transaction.phase = phase;
}

void TransactionTable::SetTimer(Transaction& transaction, int64_t when_us) {
  timers_.erase({transaction.timer_us, transaction.call_id});
  transaction.timer_us = when_us;
  timers_.emplace(when_us, transaction.call_id);
}

void TransactionTable::SetAttempt(Transaction& transaction, Attempt attempt) {
  ClearAttempt(transaction);
  call_of_attempt_[attempt.id] = transaction.call_id;
  transaction.attempt = std::move(attempt);
}

void TransactionTable::ClearAttempt(Transaction& transaction) {
  call_of_attempt_.erase(transaction.attempt.id);
  transaction.attempt.id = 0;
}

Transaction* TransactionTable::Due(int64_t now_us) {
  return NextTimerUs() <= now_us ? OfCall(timers_.begin()->second) : nullptr;
}

std::vector<uint64_t> TransactionTable::CallsThatNeed(const InstanceRef& instance) const {
  std::vector<uint64_t> call_ids;
  for (const auto& [call_id, txn] : transactions_) {
    const Pair& pair = txn.attempt.pair;
    const bool needed = (txn.NeedsChain() && pair.chain.Has(instance)) ||
                        (txn.NeedsDecode() && pair.Decodes(instance));
    if (needed) call_ids.push_back(call_id);
  }
  return call_ids;
}

std::vector<uint64_t> TransactionTable::CallIds() const {
  std::vector<uint64_t> call_ids;
  for (const auto& [call_id, txn] : transactions_) call_ids.push_back(call_id);
  return call_ids;
}

int TransactionTable::CountHeldBy(const InstanceRef& instance) const {
  const auto holds = [&instance](const auto& entry) {
    const Transaction& txn = entry.second;
    const Pair& pair = txn.attempt.pair;
    return (txn.HoldsDecode() && pair.Decodes(instance)) ||
           (txn.NeedsChain() && pair.chain.Has(instance));
  };
  return static_cast<int>(std::count_if(transactions_.begin(), transactions_.end(), holds));
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

}  // namespace baton::router
