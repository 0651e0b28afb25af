// The decode side of the KV hand-off: which writes are allowed, what has arrived, and when written
// pages may be used again. The shell passes it every arriving header before a byte is placed, so
// late or wrong data is refused instead of repaired.
//
// States of a slot: FREE -> GRANTED -> COMMITTED -> (Revoke) -> FREE
//                               \-> FAILED ----> (Revoke) -> DRAINING -> FREE
//
// A revoked grant is drained when no placement into its pages is under way. Data that arrives later
// has a stale generation and is refused, so with receiver-placed messages this is the whole fence
// (references for reuse before the fence: sglang#35049, vllm#32255). Every Revoke yields exactly
// one Drained.
//
// A writer gets receipts for its part. Its transport calls may succeed and the data may still be
// lost, so nothing counts as arrived until a receipt says so.
//
// Used on the thread that places bytes; not thread-safe. Times are microseconds of that thread's
// clock.
#ifndef COMMON_KV_LEASE_TABLE_H_
#define COMMON_KV_LEASE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/types/instance.h"
#include "common/types/kv_layout.h"
#include "common/types/sampled_token.h"
#include "common/types/ticket.h"

namespace baton {

// The header of a data message: a run of whole pages of the layers that both ends have, or one part
// of a page that is too large for one message.
struct KvDataHeader {
  uint32_t slot = 0;
  uint64_t generation = 0;
  uint64_t decode_incarnation = 0;
  uint64_t writer_incarnation = 0;
  LayerRange layers;
  int first_page = 0;  // Index within the prompt's pages; not before the grant's.
  int page_count = 0;
  int part = 0;           // If a page has several parts; page_count is then 1.
  uint64_t bytes = 0;     // The payload's length: page_count bands of the writer, or one part.
  uint64_t checksum = 0;  // The payload's XXH3-64.
  auto operator<=>(const KvDataHeader&) const = default;
};

// A writer's statement that it has sent all of the layers that both ends have. The last stage's
// rank 0 tells the first token to those that have the last layer. When it is sent again, it asks
// what has arrived.
struct KvCommit {
  uint32_t slot = 0;
  uint64_t generation = 0;
  uint64_t decode_incarnation = 0;
  uint64_t writer_incarnation = 0;
  LayerRange layers;
  int page_count = 0;         // The whole prompt's.
  uint64_t checksum_sum = 0;  // Sum of the checksums of all its runs, modulo 2^64.
  bool has_first_token = false;
  SampledToken first_token;
  std::string writer_id;  // With writer_incarnation: the receiver of the receipt.
  auto operator<=>(const KvCommit&) const = default;
};

enum class KvReceiptKind : uint8_t {
  kComplete = 1,  // All of the writer's layers have arrived.
  kMissing = 2,   // The commit has arrived, some parts have not: late or lost.
  kOver = 3,      // The grant no longer waits: it was committed, failed or revoked before.
  kRefused = 4,   // The commit is wrong for good.
};

// Decode's answer to a commit, when the writer's part is complete or when the writer asks again.
struct KvReceipt {
  InstanceRef writer;
  uint32_t slot = 0;
  uint64_t generation = 0;
  uint64_t decode_incarnation = 0;
  KvReceiptKind kind = KvReceiptKind::kComplete;
  uint32_t missing_parts = 0;
  auto operator<=>(const KvReceipt&) const = default;
};

struct KvGrant {
  uint32_t slot = 0;
  uint64_t generation = 0;
  std::vector<int> pages;  // The prompt's, in order; the decode's own ids.
  // The writers that send to this process (WritersTo of head_routes.h). Together they write each of
  // its layers and heads exactly once (the decode core has checked).
  std::vector<KvWriter> writers;
  int64_t deadline_us = kNeverUs;
  // Nothing is written to the pages before it: their KV is there. Below pages.size().
  int first_page = 0;
};

// Where to place a run: bytes [offset_bytes, offset_bytes + page_bytes) of the writer's band of
// each of `pages`, in payload order. The band is [layer][plane][head][token][row] of `layers` and
// `heads`: the model's heads that the writer has a route for to this process.
struct KvPlacement {
  std::vector<int> pages;
  LayerRange layers;
  IndexRange heads;
  size_t offset_bytes = 0;
  size_t page_bytes = 0;
  uint64_t receipt = 0;  // Names this placement in OnPlaced; never 0.
};

// Why a header was refused; a label of the metric and of the log line.
enum class KvRefusal {
  kUnknownSlot,
  kStaleGeneration,
  kWrongIncarnation,
  kNotAWriter,  // The layers or the writer's incarnation are not in the grant.
  kBadRange,    // Pages outside the prompt, or before the grant's first one.
  kBadLength,
  kDuplicate,  // A page that has arrived or is arriving, or a second commit that differs.
  kConsumed,   // Committed or failed before.
  kBadCommit,  // The first token is missing, or not this writer's to send, or the page count is
               // wrong. Ends the grant.
};
const char* KvRefusalName(KvRefusal refusal);

struct KvCommitted {
  uint32_t slot = 0;
  uint64_t generation = 0;
  // Set if the writing chain's last stage's rank 0 writes the last layers here; always on the last
  // stage's rank 0 of decode.
  std::optional<SampledToken> first_token = std::nullopt;
  uint64_t bytes = 0;
};
struct KvFailed {
  uint32_t slot = 0;
  uint64_t generation = 0;
  absl::Status status;  // Names the writer (leg "prefill") or the cause.
};
struct KvDrained {
  uint32_t slot = 0;
  uint64_t generation = 0;
};
using LeaseEvent = std::variant<KvCommitted, KvFailed, KvDrained>;

struct LeaseTableOptions {
  InstanceRef self;
  KvLayout layout;                      // This process's pages, with its own layers and heads.
  TensorRank rank;                      // Its place in its stage of the decode service.
  int model_kv_heads = 0;               // 0: the layout's, for a decode service of one rank.
  int model_layers = 0;                 // 0: the layout's, for one of one stage.
  uint32_t slots = 0;                   // Bounds the grants.
  int64_t writer_lease_us = 3'000'000;  // A writer's grants end after so long a silence.
  size_t part_bytes = kKvPartBytes;
};

class LeaseTable {
 public:
  explicit LeaseTable(LeaseTableOptions options);
  ~LeaseTable();

  // Opens a grant. The slot must be free and the generation larger than any before; the decode core
  // ensures both, so a breach is a broken invariant.
  void Grant(KvGrant grant, int64_t now_us);

  // Ends a grant in any state. Drained follows at once, or when the last placement ends. Does
  // nothing for an unknown or stale (slot, generation).
  void Revoke(uint32_t slot, uint64_t generation, std::vector<LeaseEvent>& events);

  // Every message of a writer renews its lease, also one that is refused because its grant has
  // ended. A lease ends for silence, not because heartbeats are queued behind bytes that were sent
  // before them.

  // Checks a header. On success the caller places `payload_bytes` bytes as the placement says, then
  // calls OnPlaced exactly once; until then the pages are held. Errors: FAILED_PRECONDITION or
  // INVALID_ARGUMENT; `refusal` says which check.
  absl::StatusOr<KvPlacement> OnData(const KvDataHeader& header, size_t payload_bytes,
                                     int64_t now_us, KvRefusal& refusal);

  // `status` is the transfer's; `checksum` is that of the placed bytes.
  void OnPlaced(uint64_t receipt, const absl::Status& status, uint64_t checksum, int64_t now_us,
                std::vector<LeaseEvent>& events);

  // A commit may arrive before the last data; the last of them to arrive commits the grant. A
  // repeated commit is answered by a receipt and changes nothing.
  absl::Status OnCommit(const KvCommit& commit, int64_t now_us, KvRefusal& refusal,
                        std::vector<LeaseEvent>& events);

  // A sign of life from a writer's data thread.
  void OnHeartbeat(const InstanceRef& writer, int64_t now_us);

  // The receipts since the last call, at most one for each OnPlaced and OnCommit. A writer asks
  // again if a receipt is lost.
  std::vector<KvReceipt> TakeReceipts();

  // Ends grants whose writer has been silent for the lease or whose deadline has passed.
  void Tick(int64_t now_us, std::vector<LeaseEvent>& events);

  int active_grants() const;  // GRANTED, COMMITTED or FAILED: not yet revoked.

  // For tests; defined in testing/.
  absl::Status CheckInvariants() const;
  int draining() const;  // Grants revoked with placements under way.
  bool AtRest() const { return active_grants() == 0 && draining() == 0; }  // I5
  int64_t NextDeadlineUs() const;
  // Whether everything that `writer` delivers under the slot's grant has arrived, or the grant is
  // no longer open.
  bool WriterComplete(uint32_t slot, const InstanceRef& writer) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baton

#endif  // COMMON_KV_LEASE_TABLE_H_
