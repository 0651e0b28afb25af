// An outbox whose actions are sorted by kind, for the tests of its parts.
#ifndef SERVICES_PREFILL_CORE_KV_OUTBOX_FIXTURE_H_
#define SERVICES_PREFILL_CORE_KV_OUTBOX_FIXTURE_H_

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "services/prefill/core/kv_outbox.h"

namespace baton::prefill {

inline const InstanceRef kDecode{"decode-0", 5};
inline const InstanceRef kOther{"decode-1", 6};
inline constexpr size_t kPage = 100;

inline KvOutboxOptions SmallOptions() {
  KvOutboxOptions options;
  options.page_bytes = kPage;
  options.layers = {0, 1};
  options.part_bytes = 400;
  options.merged_bytes = 250;
  options.window_bytes = 500;
  options.window_messages = 4;
  return options;
}

class KvOutboxTest : public testing::Test {
 protected:
  explicit KvOutboxTest(const KvOutboxOptions& options = SmallOptions()) : outbox_(options) {}

  void Send(uint64_t send_id, uint64_t attempt, std::vector<int> pages, int first_page = 0,
            const InstanceRef& decode = kDecode) {
    SendKv send{1, send_id, attempt, {.decode = decode}, first_page, std::move(pages)};
    outbox_.Add(send, 0, actions_);
    Sort();
  }
  static Ticket TicketOf(uint64_t attempt) {
    Ticket ticket{.decode = kDecode};
    ticket.slot = 2;
    ticket.generation = attempt;
    return ticket;
  }
  void Commit(uint64_t send_id, uint64_t attempt) {
    outbox_.Add(SendCommit{1, send_id, attempt, TicketOf(attempt), {}}, 0, actions_);
    Sort();
  }
  void Receive(uint64_t attempt, KvReceiptKind kind, uint32_t missing = 0) {
    outbox_.OnReceipt({{"prefill-0", 1}, 2, attempt, kDecode.incarnation, kind, missing}, now_us_,
                      actions_);
    Sort();
  }
  void Tick() {
    outbox_.Tick(now_us_, actions_);
    Sort();
  }
  void End(uint64_t message_id, const absl::Status& status = absl::OkStatus()) {
    outbox_.MessageEnded(message_id, status, now_us_, actions_);
    Sort();
  }
  void EndExport(const SendKvMessage& message,
                 const absl::StatusOr<uint64_t>& checksum = uint64_t{1}) {
    outbox_.Exported(message.message_id, checksum, now_us_, actions_);
    Sort();
  }
  // Moves what came of the last call to its kind. Exports end at once, but for held ones.
  void Sort() {
    EXPECT_TRUE(outbox_.CheckInvariants().ok()) << outbox_.CheckInvariants();
    for (size_t i = 0; i < actions_.size(); ++i) {
      const KvOutboxAction action = actions_[i];  // More may come.
      if (const auto* start = std::get_if<ExportKv>(&action)) {
        exports_.push_back(start->message);
        if (!hold_exports_) outbox_.Exported(start->message.message_id, 1, now_us_, actions_);
      } else if (const auto* data = std::get_if<SendKvMessage>(&action)) {
        data_.push_back(*data);
      } else if (const auto* commit = std::get_if<SendCommitMessage>(&action)) {
        commits_.push_back(*commit);
      } else {
        sent_.push_back(std::get<KvSent>(action));
      }
    }
    actions_.clear();
  }

  KvOutbox outbox_;
  int64_t now_us_ = 10;
  std::vector<KvOutboxAction> actions_;
  bool hold_exports_ = false;
  std::vector<SendKvMessage> exports_;
  std::vector<SendKvMessage> data_;
  std::vector<SendCommitMessage> commits_;
  std::vector<KvSent> sent_;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_KV_OUTBOX_FIXTURE_H_
