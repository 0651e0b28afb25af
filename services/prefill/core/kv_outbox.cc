#include "services/prefill/core/kv_outbox.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/planted_bug.h"

namespace baton::prefill {

KvOutbox::KvOutbox(const KvOutboxOptions& options) : options_(options) {
  BATON_CHECK(options.page_bytes > 0 && options.part_bytes > 0 && options.window_messages > 0)
      << options.page_bytes << " bytes a page, " << options.part_bytes << " a part";
}

void KvOutbox::Add(const SendKv& action, int64_t now_us, std::vector<KvOutboxAction>& actions) {
  BATON_CHECK(!action.pages.empty()) << "send " << action.send_id << " of no pages";
  Send send;
  send.epoch = action.epoch;
  send.attempt_id = action.attempt_id;
  send.ticket = action.ticket;
  send.first_page = action.first_page;
  send.pages = action.pages;
  Enqueue(action.send_id, std::move(send), now_us, actions);
}

void KvOutbox::Add(const SendCommit& action, int64_t now_us, std::vector<KvOutboxAction>& actions) {
  Send send;
  send.epoch = action.epoch;
  send.attempt_id = action.attempt_id;
  send.ticket = action.ticket;
  send.first_token = action.first_token;
  send.is_commit = true;
  Enqueue(action.send_id, std::move(send), now_us, actions);
}

void KvOutbox::Enqueue(uint64_t send_id, Send send, int64_t now_us,
                       std::vector<KvOutboxAction>& actions) {
  send.begun_us = now_us;
  const InstanceRef decode = send.ticket.decode;
  if (const auto failed = failed_.find(send.attempt_id); failed != failed_.end()) {
    Covered<"outbox: a send comes after its attempt failed">();
    actions.push_back(KvSent{send.epoch, send_id, failed->second, 0, 0});
    return;
  }
  const bool fresh = sends_.emplace(send_id, std::move(send)).second;
  BATON_CHECK(fresh) << "send " << send_id << " comes twice";
  std::deque<uint64_t>& waiting = lanes_[decode].waiting;
  if (sends_.at(send_id).is_commit && PlantedBug(Bug::kOutboxCommitsEarly)) {
    waiting.push_front(send_id);
  } else {
    waiting.push_back(send_id);
  }
  Pump(decode, actions);
}

// ---- Messages ----

SendKvMessage KvOutbox::NextMessage(const Send& send) const {
  SendKvMessage message;
  message.attempt_id = send.attempt_id;
  message.ticket = send.ticket;
  message.first_page = send.first_page + static_cast<int>(send.next_page);
  if (PlantedBug(Bug::kOutboxRestartsRanges)) message.first_page -= send.first_page;
  message.page_count = 1;
  message.local_page = send.pages[send.next_page];
  message.bytes = options_.page_bytes;
  if (options_.page_bytes > options_.part_bytes) {
    message.part = send.next_part;
    message.offset_bytes = static_cast<size_t>(send.next_part) * options_.part_bytes;
    message.bytes = std::min(options_.part_bytes, options_.page_bytes - message.offset_bytes);
    return message;
  }
  const size_t limit = std::min(options_.merged_bytes, options_.part_bytes);
  for (size_t next = send.next_page + 1; next < send.pages.size(); ++next) {
    const bool neighbour = send.pages[next] == message.local_page + message.page_count;
    if (!neighbour || message.bytes + options_.page_bytes > limit) break;
    ++message.page_count;
    message.bytes += options_.page_bytes;
  }
  return message;
}

bool KvOutbox::Fits(const Lane& lane, size_t bytes) const {
  if (lane.messages == 0 || PlantedBug(Bug::kOutboxIgnoresWindow)) return true;
  return lane.messages < options_.window_messages && lane.bytes + bytes <= options_.window_bytes;
}

void KvOutbox::Pump(const InstanceRef& decode, std::vector<KvOutboxAction>& actions) {
  const auto found = lanes_.find(decode);
  if (found == lanes_.end()) return;
  Lane& lane = found->second;
  while (!lane.waiting.empty()) {
    const uint64_t send_id = lane.waiting.front();
    Send& send = sends_.at(send_id);
    if (send.is_commit) {
      if (ExportUnderWay(send.attempt_id) && !PlantedBug(Bug::kOutboxCommitsEarly)) {
        Covered<"outbox: a commit waits for an export">();
        return;
      }
      lane.waiting.pop_front();
      commits_[GrantOf(send.ticket)] = send_id;
      SendCommitOf(send_id, send, actions);
      continue;
    }
    SendKvMessage message = NextMessage(send);
    if (!Fits(lane, message.bytes)) {
      Covered<"outbox: the window is full">();
      return;
    }
    message.message_id = next_message_id_++;
    messages_[message.message_id] = {send_id, decode, message.bytes, message};
    ++send.under_way;
    ++lane.messages;
    lane.bytes += message.bytes;
    if (message.offset_bytes + message.bytes < options_.page_bytes) {
      ++send.next_part;
    } else {
      send.next_part = 0;
      send.next_page += static_cast<size_t>(message.page_count);
    }
    if (send.next_page == send.pages.size()) lane.waiting.pop_front();
    actions.push_back(ExportKv{std::move(message)});
  }
  if (lane.messages == 0) lanes_.erase(found);
}

// ---- Ends ----

void KvOutbox::Exported(uint64_t message_id, const absl::StatusOr<uint64_t>& checksum,
                        int64_t now_us, std::vector<KvOutboxAction>& actions) {
  const auto found = messages_.find(message_id);
  BATON_CHECK(found != messages_.end() && found->second.exporting.has_value())
      << "message " << message_id << " is not being exported";
  SendKvMessage message = *std::exchange(found->second.exporting, std::nullopt);
  if (!checksum.ok()) {
    Covered<"outbox: an export fails">();
    return MessageEnded(message_id, checksum.status(), now_us, actions);
  }
  message.checksum = *checksum;
  const InstanceRef decode = found->second.decode;
  // Also of what is cancelled: its page is held until the message has ended, and most have left.
  if (!failed_.contains(message.attempt_id)) checksum_sums_[message.attempt_id] += *checksum;
  actions.push_back(std::move(message));
  Pump(decode, actions);
}

bool KvOutbox::ExportUnderWay(uint64_t attempt_id) const {
  return std::any_of(messages_.begin(), messages_.end(), [&](const auto& entry) {
    return entry.second.exporting.has_value() && entry.second.exporting->attempt_id == attempt_id;
  });
}

void KvOutbox::Forget(uint64_t attempt_id) {
  failed_.erase(attempt_id);
  checksum_sums_.erase(attempt_id);
}

void KvOutbox::MessageEnded(uint64_t message_id, const absl::Status& status, int64_t now_us,
                            std::vector<KvOutboxAction>& actions) {
  const auto found = messages_.find(message_id);
  BATON_CHECK(found != messages_.end()) << "message " << message_id << " is not under way";
  const Message message = std::move(found->second);
  messages_.erase(found);
  if (message.bytes > 0) {
    Lane& lane = lanes_.at(message.decode);
    --lane.messages;
    lane.bytes -= message.bytes;
  }
  Send& send = sends_.at(message.send_id);
  --send.under_way;
  if (status.ok()) {
    send.bytes += static_cast<int64_t>(message.bytes);
    send.asked_us = now_us;
  } else {
    Covered<"outbox: a message fails">();
    if (send.status.ok()) send.status = status;
    EndWaiting(send.attempt_id, status, now_us, actions);
  }
  EndIfDone(message.send_id, now_us, actions);
  Pump(message.decode, actions);
}

void KvOutbox::Cancel(uint64_t attempt_id, int64_t now_us, std::vector<KvOutboxAction>& actions) {
  EndWaiting(attempt_id, absl::CancelledError("the request is over"), now_us, actions);
}

void KvOutbox::CancelAll(int64_t now_us, std::vector<KvOutboxAction>& actions) {
  std::vector<uint64_t> attempts;
  for (const auto& [send_id, send] : sends_) attempts.push_back(send.attempt_id);
  for (const uint64_t attempt_id : attempts) Cancel(attempt_id, now_us, actions);
  failed_.clear();  // The next epoch's attempts are others.
  checksum_sums_.clear();
}

// Ends what is not under way of an attempt, now and from now on. A commit that waits for its
// receipt is not under way.
void KvOutbox::EndWaiting(uint64_t attempt_id, const absl::Status& status, int64_t now_us,
                          std::vector<KvOutboxAction>& actions) {
  failed_.try_emplace(attempt_id, status);
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    const auto current = lane++;  // Pump may erase it.
    std::deque<uint64_t> waiting;
    std::vector<uint64_t> ended;
    for (const uint64_t send_id : current->second.waiting) {
      (sends_.at(send_id).attempt_id == attempt_id ? ended.push_back(send_id)
                                                   : waiting.push_back(send_id));
    }
    if (ended.empty()) continue;
    current->second.waiting = std::move(waiting);
    for (const uint64_t send_id : ended) {
      Send& send = sends_.at(send_id);
      Covered<"outbox: waiting messages are cancelled">();
      if (send.status.ok()) send.status = status;
      EndIfDone(send_id, now_us, actions);
    }
    const InstanceRef decode = current->first;
    Pump(decode, actions);
  }
  for (auto commit = commits_.begin(); commit != commits_.end();) {
    const uint64_t send_id = (commit++)->second;  // EndIfDone erases it.
    Send& send = sends_.at(send_id);
    if (send.attempt_id != attempt_id) continue;
    if (send.status.ok() && !send.received) send.status = status;
    EndIfDone(send_id, now_us, actions);
  }
}

void KvOutbox::EndIfDone(uint64_t send_id, int64_t now_us, std::vector<KvOutboxAction>& actions) {
  const auto found = sends_.find(send_id);
  if (found == sends_.end()) return;  // Its last message failed and took it along.
  const Send& send = found->second;
  const bool received = send.received || PlantedBug(Bug::kOutboxTrustsSent);
  const bool done = send.is_commit ? received : send.next_page == send.pages.size();
  if (send.under_way > 0 || (!done && send.status.ok())) return;
  actions.push_back(KvSent{send.epoch, send_id, send.status, now_us - send.begun_us, send.bytes});
  if (send.is_commit) {
    const auto commit = commits_.find(GrantOf(send.ticket));
    if (commit != commits_.end() && commit->second == send_id) commits_.erase(commit);
  }
  sends_.erase(found);
}

absl::Status KvOutbox::CheckInvariants() const {
  std::map<InstanceRef, size_t> bytes;
  std::map<uint64_t, int> under_way;
  for (const auto& [message_id, message] : messages_) {
    bytes[message.decode] += message.bytes;
    ++under_way[message.send_id];
  }
  for (const auto& [decode, lane] : lanes_) {
    if (lane.bytes == bytes[decode]) continue;
    return absl::InternalError(absl::StrCat("I5: ", bytes[decode], " bytes are under way to ",
                                            decode.id, ", counted ", lane.bytes));
  }
  for (const auto& [grant, send_id] : commits_) {
    const auto send = sends_.find(send_id);
    if (send != sends_.end() && send->second.is_commit) continue;
    return absl::InternalError(absl::StrCat("send ", send_id, " awaits a receipt and is gone"));
  }
  for (const auto& [send_id, send] : sends_) {
    if (send.under_way == under_way[send_id]) continue;
    return absl::InternalError(absl::StrCat("I5: send ", send_id, " counts ", send.under_way,
                                            " messages, ", under_way[send_id], " are under way"));
  }
  return absl::OkStatus();
}

}  // namespace baton::prefill
