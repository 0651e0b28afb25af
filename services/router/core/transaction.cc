#include "services/router/core/transaction.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::router {

Transaction& TransactionTable::Add(Transaction transaction) {
  const uint64_t client = transaction.client;
  const auto [entry, added] = transactions_.emplace(client, std::move(transaction));
  BATON_CHECK(added) << "client handle " << client << " used twice";
  Transaction& txn = entry->second;
  client_of_request_[txn.request_id] = client;
  ++phase_counts_[static_cast<size_t>(txn.phase)];
  timers_.emplace(txn.timer_us, client);
  return txn;
}

void TransactionTable::Remove(uint64_t client) {
  const auto entry = transactions_.find(client);
  BATON_CHECK(entry != transactions_.end()) << "no transaction of client " << client;
  Transaction& txn = entry->second;
  ClearAttempt(txn);
  const auto named = client_of_request_.find(txn.request_id);
  if (named != client_of_request_.end() && named->second == client) {
    client_of_request_.erase(named);
  }
  --phase_counts_[static_cast<size_t>(txn.phase)];
  timers_.erase({txn.timer_us, client});
  transactions_.erase(entry);
}

Transaction* TransactionTable::OfClient(uint64_t client) {
  const auto entry = transactions_.find(client);
  return entry == transactions_.end() ? nullptr : &entry->second;
}

Transaction* TransactionTable::OfRequest(const std::string& request_id) {
  const auto client = client_of_request_.find(request_id);
  return client == client_of_request_.end() ? nullptr : OfClient(client->second);
}

Transaction* TransactionTable::OfAttempt(uint64_t attempt_id) {
  const auto client = client_of_attempt_.find(attempt_id);
  return client == client_of_attempt_.end() ? nullptr : OfClient(client->second);
}

void TransactionTable::SetPhase(Transaction& transaction, Phase phase) {
  --phase_counts_[static_cast<size_t>(transaction.phase)];
  ++phase_counts_[static_cast<size_t>(phase)];
  transaction.phase = phase;
}

void TransactionTable::SetTimer(Transaction& transaction, int64_t when_us) {
  timers_.erase({transaction.timer_us, transaction.client});
  transaction.timer_us = when_us;
  timers_.emplace(when_us, transaction.client);
}

void TransactionTable::SetAttempt(Transaction& transaction, Attempt attempt) {
  ClearAttempt(transaction);
  client_of_attempt_[attempt.id] = transaction.client;
  transaction.attempt = std::move(attempt);
}

void TransactionTable::ClearAttempt(Transaction& transaction) {
  client_of_attempt_.erase(transaction.attempt.id);
  transaction.attempt.id = 0;
}

Transaction* TransactionTable::Due(int64_t now_us) {
  return NextTimerUs() <= now_us && !timers_.empty() ? OfClient(timers_.begin()->second) : nullptr;
}

std::vector<uint64_t> TransactionTable::ClientsThatNeed(const InstanceRef& instance) const {
  std::vector<uint64_t> clients;
  for (const auto& [client, txn] : transactions_) {
    const Pair& pair = txn.attempt.pair;
    const bool in_chain =
        txn.NeedsChain() &&
        std::any_of(pair.chain.stages.begin(), pair.chain.stages.end(),
                    [&](const KvWriter& stage) { return stage.instance == instance; });
    if (in_chain || (txn.NeedsDecode() && pair.decode == instance)) clients.push_back(client);
  }
  return clients;
}

absl::Status TransactionTable::CheckInvariants() const {
  std::array<int, kPhaseCount> counts{};
  size_t attempts = 0;
  for (const auto& [client, txn] : transactions_) {
    ++counts[static_cast<size_t>(txn.phase)];
    const auto named = client_of_request_.find(txn.request_id);
    if (named == client_of_request_.end() || named->second != client) {
      return absl::InternalError(
          absl::StrCat("request id ", txn.request_id, " belongs to two transactions"));
    }
    if (!timers_.contains({txn.timer_us, client})) {
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
    const auto owner = client_of_attempt_.find(attempt.id);
    if (owner == client_of_attempt_.end() || owner->second != client) {
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
  if (attempts != client_of_attempt_.size() || timers_.size() != transactions_.size() ||
      client_of_request_.size() != transactions_.size()) {
    return absl::InternalError("an index holds more than the transactions");
  }
  return absl::OkStatus();
}

}  // namespace baton::router
