// The state of LeaseTable, shared by its source files; no other file includes it.
#ifndef COMMON_KV_LEASE_STATE_H_
#define COMMON_KV_LEASE_STATE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "common/kv/lease_table.h"

namespace baton {
namespace lease_internal {

enum class SlotState : unsigned char { kFree, kGranted, kCommitted, kFailed, kDraining };
enum class PartState : unsigned char { kMissing, kArriving, kArrived };

// What one writer of a grant has delivered so far.
struct WriterProgress {
  KvWriter writer;
  IndexRange heads;       // The model's heads that it writes here.
  bool draws = false;     // Its commit has the first token.
  size_t band_bytes = 0;  // Per page: these heads of its layers.
  int parts_per_page = 1;
  int first_page = 0;            // The grant's.
  std::vector<PartState> parts;  // Those of the prompt's pages from there on, in order.
  int arrived = 0;
  uint64_t bytes = 0;
  uint64_t checksum_sum = 0;
  std::optional<KvCommit> commit;

  bool Complete() const { return commit.has_value() && arrived == static_cast<int>(parts.size()); }
  // The range of `parts` that `header` describes. The header's range has been checked.
  std::pair<size_t, size_t> PartsOf(const KvDataHeader& header) const {
    const int page = header.first_page - first_page;
    const auto begin = static_cast<size_t>(page * parts_per_page + header.part);
    return {begin, begin + (parts_per_page == 1 ? static_cast<size_t>(header.page_count) : 1)};
  }
};

struct Slot {
  SlotState state = SlotState::kFree;
  KvGrant grant;  // The current or last generation's.
  std::vector<WriterProgress> writers;
  std::optional<SampledToken> first_token;
  bool wants_token = false;  // One of the writers sends the first token.
  int64_t granted_us = 0;
  int in_flight = 0;  // This generation's placements under way.
};

struct InFlight {
  uint32_t slot = 0;
  uint64_t generation = 0;
  size_t writer = 0;
  size_t part_begin = 0;
  size_t part_end = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};

// Kept for writers of open grants only, so that heartbeats of unknown senders take no memory.
struct LastHeard {
  int64_t last_us = 0;
  int grants = 0;
};

inline bool Revocable(SlotState state) {
  return state == SlotState::kGranted || state == SlotState::kCommitted ||
         state == SlotState::kFailed;
}

}  // namespace lease_internal

struct LeaseTable::State {
  LeaseTableOptions options;
  std::vector<lease_internal::Slot> slots;
  std::map<uint64_t, lease_internal::InFlight> in_flight;  // By receipt; ordered for replay.
  std::map<InstanceRef, lease_internal::LastHeard> heard;
  std::vector<KvReceipt> receipts;
  uint64_t last_generation = 0;
  uint64_t next_receipt = 1;

  // The checks that data and commits share: the slot is granted, and `writer` is one of its
  // writers.
  struct Place {
    lease_internal::Slot* slot = nullptr;
    size_t writer = 0;
  };
  template <typename Message>
  absl::StatusOr<Place> Locate(const Message& message, KvRefusal& refusal);
  absl::Status CheckRun(const lease_internal::Slot& slot,
                        const lease_internal::WriterProgress& writer, const KvDataHeader& header,
                        size_t payload_bytes, KvRefusal& refusal) const;

  void Arrived(uint32_t index, const lease_internal::InFlight& run, const absl::Status& status,
               uint64_t checksum, std::vector<LeaseEvent>& events);
  // Checks a commit that is neither its writer's first correct one nor a repetition of it.
  absl::Status CheckCommit(const KvCommit& commit, const lease_internal::WriterProgress& writer,
                           KvRefusal& refusal, std::vector<LeaseEvent>& events);
  // After a commit or an arrival: sends a receipt to a writer that is complete, and commits the
  // grant with the last one.
  void Settle(uint32_t index, size_t writer, std::vector<LeaseEvent>& events);
  void Tell(const KvCommit& commit, KvReceiptKind kind, uint32_t missing_parts);
  void Fail(uint32_t index, absl::Status status, std::vector<LeaseEvent>& events);
  void Drain(uint32_t index, std::vector<LeaseEvent>& events);
  void Heard(uint64_t writer_incarnation, int64_t now_us);
  void ForgetWriters(const lease_internal::Slot& slot);

  // When a granted slot ends if no message of the writer arrives.
  int64_t SilenceUs(const lease_internal::Slot& slot,
                    const lease_internal::WriterProgress& writer) const;

  absl::Status FromPrefill(absl::Status status,
                           const lease_internal::WriterProgress& writer) const {
    return WithLeg(std::move(status), "prefill", writer.writer.instance.id);
  }
};

}  // namespace baton

#endif  // COMMON_KV_LEASE_STATE_H_
