// What a stage has yet to send to the decode services: one queue for each process of them, out of
// which a bounded number of messages is under way at a time. A chunk's KV is cut into messages of
// neighbouring pages; the rest of it waits for room, so that a slow network or decode service paces
// the sender instead of failing its requests. The stage's core says when a chunk is not wanted any
// more: what is not under way then ends at once.
//
// A decode service of several stages and ranks is as many destinations (common/kv/head_routes.h): a
// send has a share for each of them that has layers and heads of this one, with these, and ends
// when all of them have. Receipts and checksums are each destination's own; an error of any of them
// ends the attempt. Where a share has a part of this process's pages its messages are gathered from
// many runs, which takes memory: so no more than `gathered_bytes` of these are under way to all
// together.
//
// A message is exported before it is sent: brought to where a transport reads it, and hashed
// (common/engine/kv_memory.h); a device may take its time for that. A request's commit leaves when
// the last of its messages has been exported, since it carries the sum of their checksums. It may
// overtake those that are under way.
//
// Sent is not arrived, whatever the transport says: a commit's send ends when decode's receipt is
// here (kv_receipts.cc), so a request that is closed without an error has its KV where it belongs.
//
// Rejected: one message for a whole chunk with a list of its pages. UCX 1.13 copies such a list
// where it moves a run without a copy, and what comes after it waits for all of it.
#ifndef SERVICES_PREFILL_CORE_KV_OUTBOX_H_
#define SERVICES_PREFILL_CORE_KV_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/kv/head_routes.h"
#include "common/kv/lease_table.h"
#include "common/types/instance.h"
#include "common/types/sampled_token.h"
#include "common/types/ticket.h"
#include "services/prefill/core/stage.h"

namespace baton::prefill {

struct KvOutboxOptions {
  size_t page_bytes = 0;   // For this stage's layers and this rank's heads.
  LayerRange layers;       // This stage's.
  TensorRank tensor_rank;  // This rank within its stage.
  int kv_heads = 1;        // The model's. With the numbers of ranks they give the routes.
  // The largest message: a page that is larger goes in parts of this size (kv_layout.h).
  size_t part_bytes = kKvPartBytes;
  // Neighbouring pages go together up to this size. Larger runs would be scattered by the receiver,
  // whose pages are not neighbours, and smaller messages cost more than their bytes.
  size_t merged_bytes = 256 << 10;
  // Under way to one process of a decode service: enough to keep the network busy while the next
  // message is hashed.
  size_t window_bytes = 12 << 20;
  int window_messages = 64;
  // Limit for gathered messages, all destinations together; each may have one beyond it.
  size_t gathered_bytes = 96 << 20;
  // A receipt that has not come after this time is asked for by the same commit, `receipt_asks`
  // times at most. After the last of them what is missing is lost.
  int64_t receipt_us = 1'000'000;
  int receipt_asks = 3;
};

// ---- Actions ----
// Send pages [first_page, first_page + page_count) of the prompt, or one part of one page. They lie
// in memory behind each other from this stage's page `local_page` on. What the message has of each
// is [layer][plane][head][token][row] of `box`. Ends with MessageEnded.
struct SendKvMessage {
  uint64_t message_id = 0;
  uint64_t attempt_id = 0;
  uint32_t slot = 0;  // The ticket's, and its generation.
  uint64_t generation = 0;
  InstanceRef decode;  // Its process that this goes to.
  KvBox box;
  int first_page = 0;
  int page_count = 0;
  int part = 0;
  int local_page = 0;
  size_t offset_bytes = 0;  // Where the part starts in the message's bytes of its page.
  size_t bytes = 0;
  uint64_t checksum = 0;  // As exported.
};
// Export what `message` is to carry. Ends with Exported; what has been exported is let go after
// MessageEnded.
struct ExportKv {
  SendKvMessage message;
};
// Send the commit of all of the attempt's messages to `decode` so far, or send it again. Ends with
// MessageEnded.
struct SendCommitMessage {
  uint64_t message_id = 0;
  uint64_t attempt_id = 0;
  uint32_t slot = 0;  // The ticket's, and its generation and number of pages.
  uint64_t generation = 0;
  int page_count = 0;
  InstanceRef decode;  // Its process that this goes to.
  LayerRange layers;   // That both have.
  std::optional<SampledToken> first_token;
  uint64_t checksum_sum = 0;  // Sum over all data messages to it, modulo 2^64.
  bool again = false;
};
using KvOutboxAction = std::variant<ExportKv, SendKvMessage, SendCommitMessage, KvSent>;

class KvOutbox {
 public:
  explicit KvOutbox(const KvOutboxOptions& options);

  // Each ends with exactly one KvSent, when none of its messages is under way. A commit that did
  // not fail also waits until every decode process that it went to has replied that all is there,
  // or that it does not wait for it. The ticket's number of ranks can share the model's KV heads,
  // and this rank sends to at least one of them (the stage's core has checked).
  void Add(const SendKv& send, int64_t now_us, std::vector<KvOutboxAction>& actions);
  void Add(const SendCommit& send, int64_t now_us, std::vector<KvOutboxAction>& actions);

  // An export has ended, with the checksum. An error ends its message.
  void Exported(uint64_t message_id, const absl::StatusOr<uint64_t>& checksum, int64_t now_us,
                std::vector<KvOutboxAction>& actions);

  // An error ends what is left of its attempt: the decode service can never have all of it.
  void MessageEnded(uint64_t message_id, const absl::Status& status, int64_t now_us,
                    std::vector<KvOutboxAction>& actions);

  // An unexpected one is ignored.
  void OnReceipt(const KvReceipt& receipt, int64_t now_us, std::vector<KvOutboxAction>& actions);
  void Tick(int64_t now_us, std::vector<KvOutboxAction>& actions);
  int64_t NextDeadlineUs() const;

  // The attempt's KV is not wanted any more: what waits ends with CANCELLED.
  void Cancel(uint64_t attempt_id, int64_t now_us, std::vector<KvOutboxAction>& actions);
  void CancelAll(int64_t now_us, std::vector<KvOutboxAction>& actions);

  // The attempt will send nothing more.
  void Forget(uint64_t attempt_id);

  bool AtRest() const { return sends_.empty() && messages_.empty(); }
  absl::Status CheckInvariants() const;  // For tests; defined in testing/.

 private:
  // What of a send goes to one of decode's processes.
  struct Share {
    InstanceRef decode;
    KvBox box;
    size_t page_bytes = 0;  // The box's.
    size_t next_page = 0;   // First page of the send, and part of it, not under way yet.
    int next_part = 0;
    int under_way = 0;
    // For a commit.
    bool received = false;  // Its receipt is here.
    int asks = 0;           // Repetitions.
    int64_t asked_us = 0;   // When the last one had left.
  };
  // A SendKv, or a SendCommit: no pages.
  struct Send {
    uint64_t epoch = 0;
    uint64_t attempt_id = 0;
    Ticket ticket;
    int first_page = 0;
    std::vector<int> pages;
    std::optional<SampledToken> first_token;
    bool is_commit = false;
    std::vector<Share> shares;
    int64_t bytes = 0;  // In messages whose sends the transport has completed.
    int64_t begun_us = 0;
    absl::Status status;

    int under_way() const;
  };
  using ShareId = std::pair<uint64_t, size_t>;  // The stage's send id, and which of its shares.
  // Decode's incarnation, slot and generation: what a receipt names.
  using Grant = std::tuple<uint64_t, uint32_t, uint64_t>;
  struct Lane {                   // To one process of a decode service.
    std::deque<ShareId> waiting;  // Those with messages that are not under way.
    size_t bytes = 0;             // Under way.
    int messages = 0;
  };
  struct Message {
    ShareId share;
    InstanceRef decode;
    size_t bytes = 0;                        // 0: a commit.
    bool gathered = false;                   // From parts of pages.
    std::optional<SendKvMessage> exporting;  // To be sent when it is exported.
  };

  void Enqueue(uint64_t send_id, Send send, int64_t now_us, std::vector<KvOutboxAction>& actions);
  std::vector<Share> SharesOf(const Ticket& ticket);
  Share& At(const ShareId& id) { return sends_.at(id.first).shares[id.second]; }
  SendKvMessage NextMessage(const Send& send, const Share& share) const;
  void Pump(const InstanceRef& decode, std::vector<KvOutboxAction>& actions);
  bool Fits(const Lane& lane, const Share& share, size_t bytes) const;
  bool Gathers(const Share& share) const { return share.page_bytes < options_.page_bytes; }
  bool Done(const Send& send, const Share& share) const;
  void EndWaiting(uint64_t attempt_id, const absl::Status& status, int64_t now_us,
                  std::vector<KvOutboxAction>& actions);
  void EndIfDone(uint64_t send_id, int64_t now_us, std::vector<KvOutboxAction>& actions);
  void SendCommitOf(const ShareId& id, std::vector<KvOutboxAction>& actions);
  // One that has failed only waits for what is under way to the others.
  static bool AwaitsReceipt(const Send& send, const Share& share) {
    return send.status.ok() && share.under_way == 0 && !share.received;
  }
  bool UnderWay(uint64_t attempt_id, const InstanceRef& decode) const;
  bool ExportUnderWay(uint64_t attempt_id, const InstanceRef& decode) const;
  void FailCommit(const ShareId& id, const absl::Status& status, int64_t now_us,
                  std::vector<KvOutboxAction>& actions);
  static Grant GrantOf(const Ticket& ticket, const Share& share) {
    return {share.decode.incarnation, ticket.slot, ticket.generation};
  }

  const KvOutboxOptions options_;
  std::map<uint64_t, Send> sends_;  // By the stage's send id.
  std::map<InstanceRef, Lane> lanes_;
  std::map<Grant, ShareId> commits_;         // Those that have left.
  std::map<uint64_t, Message> messages_;     // Under way, by message id.
  std::map<uint64_t, absl::Status> failed_;  // By attempt, until it is forgotten.
  std::map<uint64_t, std::map<InstanceRef, uint64_t>> checksum_sums_;  // Likewise.
  size_t gathered_bytes_ = 0;                                          // Under way.
  uint64_t next_message_id_ = 1;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_KV_OUTBOX_H_
