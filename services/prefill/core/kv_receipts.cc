// What becomes of a commit: the receipt that decode sends for it, and what is done without one.
//
// A commit may arrive before its data, so decode does not answer a first one until all is there. A
// repeated one is answered at once. It is repeated only when the transport has completed all of the
// request's sends to that decode, so what is missing then is about to arrive or lost, and
// `receipt_asks` repetitions show which. The repetition also replaces a lost commit.
//
// Rejected: sending lost pages again. It would need the pages to be held, hashed and numbered once
// more for a fault that costs one attempt, which the router makes on another pair.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/prefill/core/kv_outbox.h"

namespace baton::prefill {

void KvOutbox::SendCommitOf(const ShareId& id, std::vector<KvOutboxAction>& actions) {
  const Send& send = sends_.at(id.first);
  Share& share = At(id);
  ++share.under_way;
  messages_[next_message_id_] = {id, share.decode, 0, false, std::nullopt};
  uint64_t checksum_sum = 0;
  if (const auto sums = checksum_sums_.find(send.attempt_id); sums != checksum_sums_.end()) {
    const auto sum = sums->second.find(share.decode);
    if (sum != sums->second.end()) checksum_sum = sum->second;
  }
  const Ticket& ticket = send.ticket;
  SendCommitMessage commit{
      next_message_id_++, send.attempt_id,  ticket.slot,  ticket.generation, ticket.prompt_pages,
      share.decode,       share.box.layers, std::nullopt, checksum_sum,      share.asks > 0};
  // For who draws what follows, which has the last layers.
  if (share.box.layers.end == options_.layers.end) commit.first_token = send.first_token;
  actions.push_back(std::move(commit));
}

bool KvOutbox::UnderWay(uint64_t attempt_id, const InstanceRef& decode) const {
  return std::any_of(messages_.begin(), messages_.end(), [&](const auto& entry) {
    const Message& message = entry.second;
    return message.decode == decode && sends_.at(message.share.first).attempt_id == attempt_id;
  });
}

void KvOutbox::FailCommit(const ShareId& id, const absl::Status& status, int64_t now_us,
                          std::vector<KvOutboxAction>& actions) {
  EndWaiting(sends_.at(id.first).attempt_id, WithLeg(status, "decode", At(id).decode.id), now_us,
             actions);
}

void KvOutbox::OnReceipt(const KvReceipt& receipt, int64_t now_us,
                         std::vector<KvOutboxAction>& actions) {
  const auto found =
      commits_.find(Grant{receipt.decode_incarnation, receipt.slot, receipt.generation});
  if (found == commits_.end()) return;
  const ShareId id = found->second;
  Share& share = At(id);
  if (share.received) return;  // The others' are waited for.
  const std::string& decode = share.decode.id;
  switch (receipt.kind) {
    case KvReceiptKind::kComplete:
    case KvReceiptKind::kOver:
      share.received = true;
      EndIfDone(id.first, now_us, actions);
      return;
    case KvReceiptKind::kRefused:
      FailCommit(id, absl::InternalError(absl::StrCat(decode, " refuses the KV's commit")), now_us,
                 actions);
      return;
    case KvReceiptKind::kMissing:
      if (share.asks < options_.receipt_asks) return;
      FailCommit(id,
                 absl::UnavailableError(absl::StrCat(receipt.missing_parts,
                                                     " parts of the KV were sent to ", decode,
                                                     " and have not arrived: they are lost")),
                 now_us, actions);
      return;
  }
}

void KvOutbox::Tick(int64_t now_us, std::vector<KvOutboxAction>& actions) {
  std::vector<ShareId> due;
  for (const auto& [grant, id] : commits_) {
    const Share& share = At(id);
    const bool late = now_us >= share.asked_us + options_.receipt_us;
    if (AwaitsReceipt(sends_.at(id.first), share) && late) due.push_back(id);
  }
  for (const ShareId& id : due) {
    const auto found = sends_.find(id.first);
    if (found == sends_.end()) continue;  // Went with another commit of its attempt.
    const Send& send = found->second;
    Share& share = At(id);
    if (UnderWay(send.attempt_id, share.decode)) {
      share.asked_us = now_us;
    } else if (share.asks < options_.receipt_asks) {
      ++share.asks;
      SendCommitOf(id, actions);
    } else {
      FailCommit(id,
                 absl::UnavailableError(absl::StrCat(
                     share.decode.id, " has not acknowledged the KV within ",
                     (now_us - send.begun_us) / 1000, " ms: the commit or its receipt is lost")),
                 now_us, actions);
    }
  }
}

int64_t KvOutbox::NextDeadlineUs() const {
  int64_t next_us = kNeverUs;
  for (const auto& [grant, id] : commits_) {
    const Send& send = sends_.at(id.first);
    const Share& share = send.shares[id.second];
    if (AwaitsReceipt(send, share))
      next_us = std::min(next_us, share.asked_us + options_.receipt_us);
  }
  return next_us;
}

}  // namespace baton::prefill
