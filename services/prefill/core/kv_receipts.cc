// What becomes of a commit: the receipt that decode sends for it, and what is done without one.
//
// A commit may arrive before the data that it speaks of, so decode says nothing to a first one
// until all is there. One that is repeated is answered at once. It is repeated only when nothing of
// the request is under way any more by the transport's word, so what is missing then is on its last
// meters or lost, and `receipt_asks` repetitions tell which. The repetition is also what makes good
// for a commit that was lost.
//
// Rejected: sending lost pages again. It would need the pages to be held, hashed and numbered once
// more for a fault that costs one attempt, which the router makes on another pair.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/planted_bug.h"
#include "common/base/status.h"
#include "services/prefill/core/kv_outbox.h"

namespace baton::prefill {

void KvOutbox::SendCommitOf(uint64_t send_id, Send& send, std::vector<KvOutboxAction>& actions) {
  ++send.under_way;
  messages_[next_message_id_] = {send_id, send.ticket.decode, 0, std::nullopt};
  const auto sum = checksum_sums_.find(send.attempt_id);
  actions.push_back(
      SendCommitMessage{next_message_id_++, send.attempt_id, send.ticket, send.first_token,
                        sum == checksum_sums_.end() ? 0 : sum->second, send.asks > 0});
}

bool KvOutbox::DataUnderWay(uint64_t attempt_id) const {
  return std::any_of(messages_.begin(), messages_.end(), [&](const auto& entry) {
    return sends_.at(entry.second.send_id).attempt_id == attempt_id;
  });
}

void KvOutbox::FailCommit(uint64_t send_id, const absl::Status& status, int64_t now_us,
                          std::vector<KvOutboxAction>& actions) {
  Send& send = sends_.at(send_id);
  const absl::Status failed = WithLeg(status, "decode", send.ticket.decode.id);
  send.status = failed;
  // Not by the send's own: it ends there, and others of its attempt are told the same after it.
  EndWaiting(send.attempt_id, failed, now_us, actions);
}

void KvOutbox::OnReceipt(const KvReceipt& receipt, int64_t now_us,
                         std::vector<KvOutboxAction>& actions) {
  const auto found =
      commits_.find(Grant{receipt.decode_incarnation, receipt.slot, receipt.generation});
  if (found == commits_.end()) return;
  const uint64_t send_id = found->second;
  Send& send = sends_.at(send_id);
  const std::string& decode = send.ticket.decode.id;
  switch (receipt.kind) {
    case KvReceiptKind::kComplete:
    case KvReceiptKind::kOver:
      send.received = true;
      EndIfDone(send_id, now_us, actions);
      return;
    case KvReceiptKind::kRefused:
      FailCommit(send_id, absl::InternalError(absl::StrCat(decode, " refuses the KV's commit")),
                 now_us, actions);
      return;
    case KvReceiptKind::kMissing:
      if (send.asks < options_.receipt_asks) return;
      FailCommit(send_id,
                 absl::UnavailableError(absl::StrCat(receipt.missing_parts,
                                                     " parts of the KV were sent to ", decode,
                                                     " and have not arrived: they are lost")),
                 now_us, actions);
      return;
  }
}

void KvOutbox::Tick(int64_t now_us, std::vector<KvOutboxAction>& actions) {
  std::vector<uint64_t> due;
  for (const auto& [grant, send_id] : commits_) {
    const Send& send = sends_.at(send_id);
    if (AwaitsReceipt(send) && now_us >= send.asked_us + options_.receipt_us) {
      due.push_back(send_id);
    }
  }
  for (const uint64_t send_id : due) {
    const auto found = sends_.find(send_id);
    if (found == sends_.end()) continue;  // Went with another commit of its attempt.
    Send& send = found->second;
    if (DataUnderWay(send.attempt_id)) {
      send.asked_us = now_us;
    } else if (send.asks < options_.receipt_asks) {
      ++send.asks;
      SendCommitOf(send_id, send, actions);
    } else {
      const int64_t waited_ms = (now_us - send.begun_us) / 1000;
      FailCommit(send_id,
                 absl::UnavailableError(
                     absl::StrCat(send.ticket.decode.id, " has not acknowledged the KV within ",
                                  waited_ms, " ms: the commit or its receipt is lost")),
                 now_us, actions);
    }
  }
}

int64_t KvOutbox::NextDeadlineUs() const {
  int64_t next_us = kNeverUs;
  for (const auto& [grant, send_id] : commits_) {
    const Send& send = sends_.at(send_id);
    if (AwaitsReceipt(send)) next_us = std::min(next_us, send.asked_us + options_.receipt_us);
  }
  return next_us;
}

}  // namespace baton::prefill
