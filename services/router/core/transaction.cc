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

}  // namespace baton::router
