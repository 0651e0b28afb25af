// The decode service's decisions: reservation before prefill, admission, continuous batching, the
// end of requests, and when pages come back. Event in, actions out; deterministic.
//
// A request: WAITING (for pages) -> RESERVED (ticket out) -> COMMITTED (KV and first token there)
// -> RUNNING -> gone. Of a service of several ranks this is rank 0's core: between the first two a
// request is GRANTING, until every follower has said that it takes its KV, and whatever the ranks'
// lease tables say counts once all have said it (ranks.cc). Its terminal action (Finish, or a
// refused ReplyReserve) comes exactly once (I2); its pages come back when the step that uses them
// is over and the lease table has drained. Its deadline ends it in every state, and so does a
// stream that is not opened within its lease. Once it has pages it may be retracted, with a status
// that is Retracted, for older ones that grow (growth.cc).
#ifndef SERVICES_DECODE_CORE_DECODE_CORE_H_
#define SERVICES_DECODE_CORE_DECODE_CORE_H_

#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/kv/block_pool.h"
#include "common/kv/lease_table.h"
#include "common/types/drain_counts.h"
#include "common/types/instance.h"
#include "common/types/kv_layout.h"
#include "common/types/sampled_token.h"
#include "common/types/stop_rule.h"
#include "common/types/ticket.h"

namespace baton::decode {

struct DecodeLimits {
  InstanceRef self;
  KvLayout layout;   // For this process's pages.
  int ranks = 1;     // In the decode service; this core is rank 0's.
  int kv_heads = 0;  // The model's; 0: the layout's, which is so where there is one rank.
  int page_count = 0;
  int max_running_requests = 0;  // Slots: reserved, committed and running together.
  int max_queued_requests = 0;   // Waiting for pages or a slot.
  int max_context_tokens = 0;
  int vocab_size = 0;
  bool caches = false;  // KV of finished requests is kept for prompts that begin alike.
  // New tokens of a request for which pages are held from the beginning (growth.cc). > 0.
  int reserved_decode_tokens = INT_MAX;
  // From the ticket to its stream. A router that opens none has died with the ticket, which nothing
  // else shows before the deadline.
  int64_t stream_lease_us = 3'000'000;
  // Aborts that came before their Reserve are remembered, so that an overtaken Reserve doesn't take
  // pages until its deadline; outcomes are kept for streams that have not been opened yet. So many
  // of each, of which the oldest are forgotten.
  size_t remembered_aborts = 1024;
  size_t kept_outcomes = 1024;
};

// ---- Events ----
struct ReserveRequested {
  uint64_t attempt_id = 0;
  int prompt_tokens = 0;
  StopRule stop;
  std::vector<KvWriter> writers;
  int64_t deadline_us = kNeverUs;
  // The prompt, for the prefix cache; null: it is not looked up, and not kept.
  std::shared_ptr<const std::vector<int32_t>> tokens = nullptr;
  std::string cache_salt = {};  // Prompts with different ones share nothing.
  // Who asks goes on with a text that is retracted. Without that, pages for all of it are held.
  bool resumes = false;
};
struct StreamOpened {  // Generate was called: tokens may be sent. Those before it are kept.
  uint64_t attempt_id = 0;
  uint64_t generation = 0;
};
struct AbortRequested {  // Abort, Release, or a stream or waiting Reserve call that was cancelled.
  uint64_t attempt_id = 0;
  absl::Status reason;  // What a still open stream is told; CANCELLED for the client's wish.
};
struct StepFinished {
  struct Output {
    uint64_t attempt_id = 0;
    absl::StatusOr<SampledToken> token;  // An error ends this sequence alone.
  };
  uint64_t step = 0;
  absl::Status status;  // The whole step's: an error ends every sequence in it.
  std::vector<Output> outputs;
};
// The service will leave: reservations are refused from now on, those that still wait for pages are
// given back, and what is not done at the deadline ends then. All with a status of EndedByDrain, so
// that the router begins them elsewhere if it can. Said again, the earlier deadline counts.
struct DrainBegan {
  int64_t deadline_us = kNeverUs;
};
// The followers, rank 1 and on in order, are linked and in a group with rank 0. May come once
// may_join() is true. With several ranks nothing is reserved before.
struct RanksJoined {
  std::vector<InstanceRef> followers;
  int page_count = 0;  // The smallest of all ranks.
  // The newest generation that a follower was granted, by former incarnations of rank 0 too. A late
  // message for an old grant must not be taken for a new grant's.
  uint64_t newest_generation = 0;
  bool knows_growth = true;  // All of them; if not, pages for whole texts are held.
};
// A rank is lost, and with it a part of every request's KV: all requests end with this status.
// A rank that is linked again holds none of their KV.
struct RanksLost {
  absl::Status status;
};
// The follower's table takes the KV of a grant from now on.
struct FollowerGranted {
  int rank = 0;  // >= 1, as below.
  uint32_t slot = 0;
  uint64_t generation = 0;
};
struct FollowerHeard {
  int rank = 0;
  LeaseEvent event;
};
// Gives up the cached pages that no request uses.
struct FlushCache {};
struct Tick {};  // Every event ends what is overdue; this one does nothing else.
// Lease events come from the lease table on the data thread; of this very rank where several are.
using Event = std::variant<ReserveRequested, StreamOpened, AbortRequested, StepFinished, DrainBegan,
                           FlushCache, Tick, KvCommitted, KvFailed, KvDrained, RanksJoined,
                           RanksLost, FollowerGranted, FollowerHeard>;

// ---- Actions, to be done in order ----
struct ReplyReserve {
  uint64_t attempt_id = 0;
  absl::StatusOr<Ticket> ticket;  // RESOURCE_EXHAUSTED, ALREADY_EXISTS, DEADLINE_EXCEEDED, ...
};
struct GrantKv {  // One for each rank.
  int rank = 0;
  KvGrant grant;                  // Its writers are those that have heads for the rank.
  std::vector<int> continuation;  // Pages for what comes after the prompt, as far as reserved.
};
struct RevokeKv {  // On every rank.
  uint32_t slot = 0;
  uint64_t generation = 0;
};
struct DeliverToken {
  uint64_t attempt_id = 0;
  int index = 0;  // 0: the first token, sampled by the last prefill stage.
  SampledToken token;
};
// To the stream that this very StreamOpened is about: NOT_FOUND for an unknown attempt,
// FAILED_PRECONDITION for a stale generation, ALREADY_EXISTS for a second stream. Not a terminal
// action of the request, which goes on if there is one.
struct RefuseStream {
  uint64_t attempt_id = 0;
  uint64_t generation = 0;
  absl::Status status;
};
// To an open stream. What ends a request by itself (its last token, a failed hand-off) before its
// stream is there is kept until it opens; an abort, the lease or the deadline ends the waiting.
struct Finish {
  uint64_t attempt_id = 0;
  absl::StatusOr<FinishReason> outcome;
};
// One decode step, on every rank: for each sequence the token to feed, its position, and the pages
// of its context.
struct RunStep {
  struct Sequence {
    uint64_t attempt_id = 0;
    uint32_t slot = 0;
    uint64_t generation = 0;
    int32_t token = 0;
    int position = 0;        // Position of `token`: tokens before it in the context.
    std::vector<int> pages;  // Cover positions [0, position].
    int generated = 0;       // Tokens sampled so far, the first included.
    int new_page = -1;       // The last of `pages`, if the request has it from this step on.
  };
  uint64_t step = 0;
  std::vector<Sequence> sequences;
};
// The ranks don't do the same any more, for this reason: their links are to be closed, which is
// answered by RanksLost.
struct PartRanks {
  absl::Status status;
};
using Action = std::variant<ReplyReserve, GrantKv, RevokeKv, DeliverToken, RefuseStream, Finish,
                            RunStep, PartRanks>;

struct DecodeLoad {
  int waiting = 0;
  int reserved = 0;  // Ticket out, KV not yet complete.
  int running = 0;
  int free_pages = 0;   // Those that the cache would give up are free,
  int owned_pages = 0;  // and not owned.
  int quarantined_pages = 0;
  int cached_pages = 0;              // All of the cache, also what requests use.
  uint64_t evicted_pages_total = 0;  // By the cache, for pages that a request lacked.
  uint64_t reused_pages_total = 0;   // Prompt pages that were there, so that none sent them.
  uint64_t retractions_total = 0;    // Requests that gave way to older ones' growth.
};

// One step runs at a time (RunStep, then StepFinished); what arrives meanwhile joins the next one.
class DecodeCore {
 public:
  explicit DecodeCore(DecodeLimits limits);
  ~DecodeCore();

  void Handle(const Event& event, int64_t now_us, std::vector<Action>& actions);

  // When Tick is due, or kNeverUs.
  int64_t NextDeadlineUs() const;

  DecodeLoad load() const;
  const BlockPool& pool() const;
  bool draining() const;
  // Nothing is left of the last RanksLost, here.
  bool may_join() const;
  bool joined() const;  // Always, where rank 0 is alone.
  DrainCounts drain_counts() const;
  absl::Status CheckInvariants() const;
  // I5: no request, no quarantined page, no open grant, and no owned page but the cache's.
  bool AtRest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_CORE_DECODE_CORE_H_
