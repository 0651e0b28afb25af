// A lease table with one grant, for the tests of its parts.
#ifndef COMMON_KV_LEASE_TABLE_FIXTURE_H_
#define COMMON_KV_LEASE_TABLE_FIXTURE_H_

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/kv/lease_table.h"

namespace baton {

inline constexpr int64_t kLeaseUs = 3'000'000;
inline constexpr int64_t kNowUs = 0;  // The default time of arrivals.
inline const InstanceRef kSelf{"decode-0", 100};
inline const KvLayout kLayout{.layers = 6, .kv_heads = 2, .head_dim = 4, .page_size = 16};
inline const KvWriter kFront{{"prefill-0", 201}, {0, 2}};
inline const KvWriter kBack{{"prefill-1", 202}, {2, 6}};
inline const SampledToken kToken{.token = 42, .logprob = -0.5F};

// A table with one grant of four pages in slot 1, generation 1, written by kFront and kBack.
class LeaseTableTest : public testing::Test {
 protected:
  explicit LeaseTableTest(size_t part_bytes = kKvPartBytes)
      : table_({.self = kSelf,
                .layout = kLayout,
                .slots = 4,
                .writer_lease_us = kLeaseUs,
                .part_bytes = part_bytes}) {
    Grant(1, 1, {10, 11, 12, 13});
  }

  void Grant(uint32_t slot, uint64_t generation, std::vector<int> pages,
             int64_t deadline_us = kNeverUs, int64_t now_us = 0) {
    table_.Grant({slot, generation, std::move(pages), {kFront, kBack}, deadline_us}, now_us);
  }

  static KvDataHeader Header(const KvWriter& writer, int first_page, int page_count) {
    return {.slot = 1,
            .generation = 1,
            .decode_incarnation = kSelf.incarnation,
            .writer_incarnation = writer.instance.incarnation,
            .layers = writer.layers,
            .first_page = first_page,
            .page_count = page_count,
            .bytes = static_cast<uint64_t>(page_count) * kLayout.BandBytes(writer.layers),
            .checksum = static_cast<uint64_t>(1000 * writer.layers.end + first_page)};
  }
  static KvCommit Commit(const KvWriter& writer, uint64_t checksum_sum) {
    KvCommit commit{.slot = 1,
                    .generation = 1,
                    .decode_incarnation = kSelf.incarnation,
                    .writer_incarnation = writer.instance.incarnation,
                    .layers = writer.layers,
                    .page_count = 4,
                    .checksum_sum = checksum_sum};
    commit.writer_id = writer.instance.id;
    commit.has_first_token = writer.layers.end == kLayout.layers;
    if (commit.has_first_token) commit.first_token = kToken;
    return commit;
  }

  uint64_t Begin(const KvDataHeader& header) {
    KvRefusal refusal{};
    const auto placement = table_.OnData(header, header.bytes, kNowUs, refusal);
    EXPECT_TRUE(placement.ok()) << placement.status();
    return placement.ok() ? placement->receipt : 0;
  }
  void End(uint64_t receipt, uint64_t checksum, const absl::Status& status = absl::OkStatus()) {
    table_.OnPlaced(receipt, status, checksum, kNowUs, events_);
    EXPECT_TRUE(table_.CheckInvariants().ok()) << table_.CheckInvariants();
  }
  void Place(const KvDataHeader& header) { End(Begin(header), header.checksum); }
  std::optional<KvRefusal> Refused(const KvDataHeader& header,
                                   std::optional<size_t> payload = std::nullopt) {
    KvRefusal refusal = KvRefusal::kBadCommit;  // Never a refusal of data.
    if (table_.OnData(header, payload.value_or(header.bytes), kNowUs, refusal).ok())
      return std::nullopt;
    EXPECT_TRUE(table_.CheckInvariants().ok());
    return refusal;
  }
  std::optional<KvRefusal> Committed(const KvCommit& commit) {
    KvRefusal refusal = KvRefusal::kBadLength;  // Never a refusal of a commit.
    if (table_.OnCommit(commit, kNowUs, refusal, events_).ok()) return std::nullopt;
    return refusal;
  }
  void PlaceAll() {
    Place(Header(kFront, 0, 4));
    Place(Header(kBack, 0, 4));
  }
  static constexpr uint64_t kFrontSum = 2000;
  static constexpr uint64_t kBackSum = 6000;

  static KvReceipt Receipt(const KvWriter& writer, KvReceiptKind kind, uint32_t missing = 0) {
    return {writer.instance, 1, 1, kSelf.incarnation, kind, missing};
  }
  KvReceipt OnlyReceipt() {
    const std::vector<KvReceipt> receipts = table_.TakeReceipts();
    EXPECT_EQ(receipts.size(), 1u);
    return receipts.empty() ? KvReceipt{} : receipts[0];
  }

  template <typename T>
  T OnlyEvent() {
    EXPECT_EQ(events_.size(), 1u);
    if (events_.size() != 1 || !std::holds_alternative<T>(events_[0])) {
      ADD_FAILURE() << "another event";
      return T{};
    }
    T event = std::get<T>(events_[0]);
    events_.clear();
    return event;
  }

  LeaseTable table_;
  std::vector<LeaseEvent> events_;
};

}  // namespace baton

#endif  // COMMON_KV_LEASE_TABLE_FIXTURE_H_
