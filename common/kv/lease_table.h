// The decode side of the KV hand-off: which writes are allowed, what has arrived, and when pages
// that were written to may be used again. The shell asks it about every arriving header before a
// byte is placed, so late or wrong data is refused, not repaired.
//
// States of a slot: FREE -> GRANTED -> COMMITTED -> (Revoke) -> FREE
//                               \-> FAILED ----> (Revoke) -> DRAINING -> FREE
// A revoked grant is drained once no placement into its pages is under way: data that comes later
// has a stale generation and is refused, so with receiver-placed messages that is the whole fence
// (reference: reuse before it, sglang#35049, vllm#32255). Every Revoke yields exactly one Drained.
//
// A writer hears what has become of its part: what its transport calls sent may be lost, so until a
// receipt says otherwise nothing has arrived.
//
// Lives on the thread that places bytes; not thread-safe. Times are microseconds of that thread's
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
#include "common/types/tensor_rank.h"
#include "common/types/ticket.h"

namespace baton {

// A run of whole pages of one stage's layers, or one part of a page that is too large for one
// message, as a writer announces it.
struct KvDataHeader {
  uint32_t slot = 0;
  uint64_t generation = 0;
  uint64_t decode_incarnation = 0;
  uint64_t writer_incarnation = 0;
  LayerRange layers;
  int first_page = 0;  // Index within the prompt's pages.
  int page_count = 0;
  int part = 0;           // Of the page, if it has several: then page_count is 1.
  uint64_t bytes = 0;     // page_count times the writer's band or the part's; the payload's length.
  uint64_t checksum = 0;  // XXH3-64 of the payload.
  auto operator<=>(const KvDataHeader&) const = default;
};

// A writer's statement that it has sent all of its layers. That of the last stage's rank 0 carries
// the first token. Sent again, it asks what has arrived.
struct KvCommit {
  uint32_t slot = 0;
  uint64_t generation = 0;
  uint64_t decode_incarnation = 0;
  uint64_t writer_incarnation = 0;
  LayerRange layers;
  int page_count = 0;         // Of the whole prompt.
  uint64_t checksum_sum = 0;  // Of all its runs' checksums, modulo 2^64: independent of order.
  bool has_first_token = false;
  SampledToken first_token;
  std::string writer_id;  // With writer_incarnation: to whom the receipt goes.
  auto operator<=>(const KvCommit&) const = default;
};

enum class KvReceiptKind : uint8_t {
  kComplete = 1,  // All of the writer's layers are here.
  kMissing = 2,   // The commit is here, parts are not: late or lost.
  kOver = 3,      // Nobody waits for them any more: committed, failed or revoked before.
  kRefused = 4,   // The commit can never be right.
};

// What decode answers to a commit, once the writer's part is complete or when it is asked again.
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
  // Those with a route to this rank of decode (head_routes.h): together they bring each of its
  // heads of every layer exactly once (the decode core has checked).
  std::vector<KvWriter> writers;
  int64_t deadline_us = kNeverUs;
};

// Where a run goes: bytes [offset, offset + page_bytes) of the writer's band of each of `pages`, in
// payload order. The band is [layer][K/V][head][token][dim] of `layers` and `heads`, which are
// those of the model that the writer has a route for to here.
struct KvPlacement {
  std::vector<int> pages;
  LayerRange layers;
  IndexRange heads;
  size_t offset_bytes = 0;
  size_t page_bytes = 0;
  uint64_t receipt = 0;  // Names this placement in OnPlaced; never 0.
};

// Why a header was refused; label of the metric and of the log line.
enum class KvRefusal {
  kUnknownSlot,
  kStaleGeneration,
  kWrongIncarnation,
  kNotAWriter,  // Layers or writer's incarnation not in the grant.
  kBadRange,    // Pages outside the prompt.
  kBadLength,
  kDuplicate,  // A page that has arrived or is arriving, or a second commit that differs.
  kConsumed,   // Committed or failed before.
  kBadCommit,  // A first token that is missing or not this writer's; ends the grant, as a commit
               // of another number of pages does.
};
const char* KvRefusalName(KvRefusal refusal);

struct KvCommitted {
  uint32_t slot = 0;
  uint64_t generation = 0;
  // There if the last stage's rank 0 writes to this rank of decode; always so on rank 0.
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
  KvLayout layout;                      // Of this process's pages: its own heads.
  TensorRank rank;                      // Its place in the decode service.
  int model_kv_heads = 0;               // 0: the layout's, for a decode service of one rank.
  uint32_t slots = 0;                   // Bounds the grants.
  int64_t writer_lease_us = 3'000'000;  // Silence of a writer that ends its grants.
  size_t part_bytes = kKvPartBytes;
};

class LeaseTable {
 public:
  explicit LeaseTable(LeaseTableOptions options);
  ~LeaseTable();

  // Opens a grant. The slot must be free and the generation larger than any before: the decode core
  // sees to both, so a breach is a broken invariant.
  void Grant(KvGrant grant, int64_t now_us);

  // Ends a grant in whatever state; Drained follows, now or when the last placement ends. Unknown
  // or stale (slot, generation): nothing.
  void Revoke(uint32_t slot, uint64_t generation, std::vector<LeaseEvent>& events);

  // Whatever comes of a writer is a sign of its life, also what is refused because its grant has
  // ended: a lease ends for silence, not because heartbeats are late behind bytes that were sent
  // before them.

  // Checks a header. On success the caller places `payload_bytes` bytes as the placement says and
  // then calls OnPlaced exactly once; until then the pages are held.
  // Errors: FAILED_PRECONDITION or INVALID_ARGUMENT; `refusal` says which check.
  absl::StatusOr<KvPlacement> OnData(const KvDataHeader& header, size_t payload_bytes,
                                     int64_t now_us, KvRefusal& refusal);

  // `status`: of the transfer; `checksum`: of the bytes as placed.
  void OnPlaced(uint64_t receipt, const absl::Status& status, uint64_t checksum, int64_t now_us,
                std::vector<LeaseEvent>& events);

  // May come before the last data, which it may overtake on its way: the grant is committed by
  // whatever completes it. The same commit again is answered by a receipt and changes nothing.
  absl::Status OnCommit(const KvCommit& commit, int64_t now_us, KvRefusal& refusal,
                        std::vector<LeaseEvent>& events);

  // A sign of life from a writer's data thread.
  void OnHeartbeat(const InstanceRef& writer, int64_t now_us);

  // What is to be told to writers since the last call, at most one receipt for each OnPlaced and
  // OnCommit. One that is lost on its way is asked for again.
  std::vector<KvReceipt> TakeReceipts();

  // Ends grants whose writer has been silent for the lease or whose deadline has passed.
  void Tick(int64_t now_us, std::vector<LeaseEvent>& events);
  int64_t NextDeadlineUs() const;

  // All that `writer` has to deliver under the slot's grant is here, or the grant is
  // not open any more.
  bool WriterComplete(uint32_t slot, const InstanceRef& writer) const;
  int active_grants() const;  // GRANTED or COMMITTED or FAILED: not yet revoked.
  int draining() const;       // Revoked with placements under way.
  bool AtRest() const { return active_grants() == 0 && draining() == 0; }  // I5
  absl::Status CheckInvariants() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baton

#endif  // COMMON_KV_LEASE_TABLE_H_
