#include "services/prefill/core/kv_outbox.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/base/coverage.h"

namespace baton::prefill {

KvOutbox::KvOutbox(const KvOutboxOptions& options) : options_(options) {
  BATON_CHECK(options.page_bytes > 0 && options.part_bytes > 0 && options.window_messages > 0)
      << options.page_bytes << " bytes a page, " << options.part_bytes << " a part";
  const auto own_heads =
      static_cast<size_t>(KvHeadsOf(options.kv_heads, options.tensor_rank).size());
  const auto own_layers = static_cast<size_t>(options.layers.size());
  BATON_CHECK(own_layers > 0 && options.page_bytes % (own_heads * own_layers) == 0)
      << options.page_bytes << " bytes a page of " << own_heads << " heads in " << own_layers
      << " layers";
}

int KvOutbox::Send::under_way() const {
  int messages = 0;
  for (const Share& share : shares) messages += share.under_way;
  return messages;
}

std::vector<KvOutbox::Share> KvOutbox::SharesOf(const Ticket& ticket) {
  const KvPlace own{options_.layers, options_.tensor_rank};
  const int own_heads = KvHeadsOf(options_.kv_heads, own.rank).size();
  const size_t own_parts = static_cast<size_t>(own_heads) * static_cast<size_t>(own.layers.size());
  std::vector<Share> shares;
  const std::vector<KvPlace> places = PlacesOf(ticket, own.layers.end);
  for (size_t place = 0; place < places.size(); ++place) {
    const auto box = BoxBetween(options_.kv_heads, own, places[place]);
    if (!box.has_value()) continue;
    Share share;
    share.decode = ticket.place(static_cast<int>(place));
    share.box = *box;
    const size_t parts =
        static_cast<size_t>(box->heads.size()) * static_cast<size_t>(box->layers.size());
    share.page_bytes = options_.page_bytes / own_parts * parts;
    shares.push_back(std::move(share));
  }
  BATON_CHECK(!shares.empty()) << "rank " << own.rank.rank << " of " << own.rank.size
                               << " writes nothing to " << ticket.decode.id << " of "
                               << ticket.places() << " processes";
  return shares;
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
  if (const auto failed = failed_.find(send.attempt_id); failed != failed_.end()) {
    Covered<"outbox: a send comes after its attempt failed">();
    actions.push_back(KvSent{send.epoch, send_id, failed->second, 0, 0});
    return;
  }
  send.shares = SharesOf(send.ticket);
  std::vector<InstanceRef> decodes;
  for (size_t i = 0; i < send.shares.size(); ++i) {
    decodes.push_back(send.shares[i].decode);
    lanes_[decodes.back()].waiting.emplace_back(send_id, i);
  }
  const bool fresh = sends_.emplace(send_id, std::move(send)).second;
  BATON_CHECK(fresh) << "send " << send_id << " comes twice";
  for (const InstanceRef& decode : decodes) Pump(decode, actions);
}

// ---- Messages ----

SendKvMessage KvOutbox::NextMessage(const Send& send, const Share& share) const {
  SendKvMessage message;
  message.attempt_id = send.attempt_id;
  message.slot = send.ticket.slot;
  message.generation = send.ticket.generation;
  message.decode = share.decode;
  message.box = share.box;
  message.first_page = send.first_page + static_cast<int>(share.next_page);
  message.page_count = 1;
  message.local_page = send.pages.at(share.next_page);
  message.bytes = share.page_bytes;
  if (share.page_bytes > options_.part_bytes) {
    message.part = share.next_part;
    message.offset_bytes = static_cast<size_t>(share.next_part) * options_.part_bytes;
    message.bytes = std::min(options_.part_bytes, share.page_bytes - message.offset_bytes);
  }
  // Nothing is merged with a part: its page alone is beyond the limit.
  const size_t limit = std::min(options_.merged_bytes, options_.part_bytes);
  for (size_t next = share.next_page + 1; next < send.pages.size(); ++next) {
    const bool neighbour = send.pages[next] == message.local_page + message.page_count;
    if (!neighbour || message.bytes + share.page_bytes > limit) break;
    ++message.page_count;
    message.bytes += share.page_bytes;
  }
  return message;
}

bool KvOutbox::Fits(const Lane& lane, const Share& share, size_t bytes) const {
  if (lane.messages == 0) return true;
  if (Gathers(share) && gathered_bytes_ + bytes > options_.gathered_bytes) return false;
  return lane.messages < options_.window_messages && lane.bytes + bytes <= options_.window_bytes;
}

void KvOutbox::Pump(const InstanceRef& decode, std::vector<KvOutboxAction>& actions) {
  const auto found = lanes_.find(decode);
  if (found == lanes_.end()) return;
  Lane& lane = found->second;
  while (!lane.waiting.empty()) {
    const ShareId id = lane.waiting.front();
    const Send& send = sends_.at(id.first);
    Share& share = At(id);
    if (send.is_commit) {
      if (ExportUnderWay(send.attempt_id, decode)) {
        Covered<"outbox: a commit waits for an export">();
        return;
      }
      lane.waiting.pop_front();
      commits_[GrantOf(send.ticket, share)] = id;
      SendCommitOf(id, actions);
      continue;
    }
    SendKvMessage message = NextMessage(send, share);
    if (!Fits(lane, share, message.bytes)) {
      Covered<"outbox: the window is full">();
      return;
    }
    message.message_id = next_message_id_++;
    messages_[message.message_id] = {id, decode, message.bytes, Gathers(share), message};
    ++share.under_way;
    ++lane.messages;
    lane.bytes += message.bytes;
    if (Gathers(share)) gathered_bytes_ += message.bytes;
    if (message.offset_bytes + message.bytes < share.page_bytes) {
      ++share.next_part;
    } else {
      share.next_part = 0;
      share.next_page += static_cast<size_t>(message.page_count);
    }
    if (share.next_page == send.pages.size()) lane.waiting.pop_front();
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
  if (!failed_.contains(message.attempt_id)) {
    checksum_sums_[message.attempt_id][decode] += *checksum;
  }
  actions.push_back(std::move(message));
  Pump(decode, actions);
}

bool KvOutbox::ExportUnderWay(uint64_t attempt_id, const InstanceRef& decode) const {
  return std::any_of(messages_.begin(), messages_.end(), [&](const auto& entry) {
    const Message& message = entry.second;
    return message.exporting.has_value() && message.exporting->attempt_id == attempt_id &&
           message.decode == decode;
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
  if (message.bytes != 0) {
    Lane& lane = lanes_.at(message.decode);
    --lane.messages;
    lane.bytes -= message.bytes;
    if (message.gathered) gathered_bytes_ -= message.bytes;
  }
  Send& send = sends_.at(message.share.first);
  Share& share = At(message.share);
  --share.under_way;
  if (status.ok()) {
    send.bytes += static_cast<int64_t>(message.bytes);
    share.asked_us = now_us;
  } else {
    Covered<"outbox: a message fails">();
    if (send.status.ok()) send.status = status;
    EndWaiting(send.attempt_id, status, now_us, actions);
  }
  EndIfDone(message.share.first, now_us, actions);
  if (!message.gathered) return Pump(message.decode, actions);
  // Others may have waited for its memory.
  std::vector<InstanceRef> decodes;
  for (const auto& [decode, lane] : lanes_) decodes.push_back(decode);
  for (const InstanceRef& decode : decodes) Pump(decode, actions);
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
// receipts is not under way.
void KvOutbox::EndWaiting(uint64_t attempt_id, const absl::Status& status, int64_t now_us,
                          std::vector<KvOutboxAction>& actions) {
  failed_.try_emplace(attempt_id, status);
  std::vector<uint64_t> ended;
  std::vector<InstanceRef> freed;
  for (auto& [decode, lane] : lanes_) {
    std::deque<ShareId> waiting;
    for (const ShareId& id : lane.waiting) {
      if (sends_.at(id.first).attempt_id != attempt_id) {
        waiting.push_back(id);
      } else if (std::find(ended.begin(), ended.end(), id.first) == ended.end()) {
        ended.push_back(id.first);
      }
    }
    if (waiting.size() == lane.waiting.size()) continue;
    lane.waiting = std::move(waiting);
    freed.push_back(decode);
  }
  for (const uint64_t send_id : ended) {
    Send& send = sends_.at(send_id);
    Covered<"outbox: waiting messages are cancelled">();
    if (send.status.ok()) send.status = status;
    EndIfDone(send_id, now_us, actions);
  }
  for (const InstanceRef& decode : freed) Pump(decode, actions);
  std::set<uint64_t> asking;
  for (const auto& [grant, id] : commits_) {
    if (sends_.at(id.first).attempt_id == attempt_id) asking.insert(id.first);
  }
  for (const uint64_t send_id : asking) {
    Send& send = sends_.at(send_id);
    const bool received = std::all_of(send.shares.begin(), send.shares.end(),
                                      [](const Share& share) { return share.received; });
    if (send.status.ok() && !received) send.status = status;
    EndIfDone(send_id, now_us, actions);
  }
}

bool KvOutbox::Done(const Send& send, const Share& share) const {
  return send.is_commit ? share.received : share.next_page == send.pages.size();
}

void KvOutbox::EndIfDone(uint64_t send_id, int64_t now_us, std::vector<KvOutboxAction>& actions) {
  const auto found = sends_.find(send_id);
  if (found == sends_.end()) return;  // Its last message failed and took it along.
  const Send& send = found->second;
  const bool done = std::all_of(send.shares.begin(), send.shares.end(),
                                [&](const Share& share) { return Done(send, share); });
  if (send.under_way() > 0 || (!done && send.status.ok())) return;
  actions.push_back(KvSent{send.epoch, send_id, send.status, now_us - send.begun_us, send.bytes});
  for (const Share& share : send.shares) {
    const auto commit = commits_.find(GrantOf(send.ticket, share));
    if (commit != commits_.end() && commit->second.first == send_id) commits_.erase(commit);
  }
  sends_.erase(found);
}

}  // namespace baton::prefill
