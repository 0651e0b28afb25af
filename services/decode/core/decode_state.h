// Inside of DecodeCore, shared by its source files; nothing else includes it. Requests are in
// reservation.cc until they have pages, in ranks.cc until their KV is there, in batch.cc from then
// on, and end in ending.cc. cache.cc has what they share, growth.cc what they take later.
#ifndef SERVICES_DECODE_CORE_DECODE_STATE_H_
#define SERVICES_DECODE_CORE_DECODE_STATE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "common/kv/block_pool.h"
#include "common/kv/page_tree.h"
#include "common/types/instance.h"
#include "common/types/sampled_token.h"
#include "services/decode/core/decode_core.h"

namespace baton::decode {

enum class Phase : unsigned char {
  kWaiting,    // For pages or a slot.
  kGranting,   // Has them; some follower has not said yet that it takes KV.
  kReserved,   // Ticket out; KV on its way.
  kCommitted,  // KV and first token there; runs once its stream is open.
  kEnded,      // Its outcome is kept for a stream that opens later; holds nothing else.
};

// Ranks that have not said something yet: a bit each.
using RankSet = uint64_t;
inline RankSet AllRanks(int ranks) { return ~RankSet{0} >> (kMaxTensorRanks - ranks); }

struct Request {
  Phase phase = Phase::kWaiting;
  int prompt_tokens = 0;
  int token_limit = 0;  // New tokens: max_tokens, or what the context leaves.
  StopRule stop;
  std::vector<KvWriter> writers;
  int64_t deadline_us = kNeverUs;
  bool resumes = false;  // It may be retracted, and has a reserve of pages at first.

  // The prefix cache.
  std::shared_ptr<const std::vector<int32_t>> tokens;  // The prompt. Null: it has no part.
  std::string cache_salt;
  std::vector<int32_t> text;  // What was drawn.
  PageTree::Prefix prefix;    // Those of `pages` that belong to the tree.

  // From kGranting on.
  uint32_t slot = 0;
  uint64_t generation = 0;
  std::vector<int> pages;
  RankSet not_granted = 0;    // Followers.
  RankSet not_committed = 0;  // Ranks.
  SampledToken first_token;   // As rank 0's table has committed it.

  // From kReserved on.
  int64_t granted_us = 0;
  bool stream_open = false;

  // From kCommitted on.
  int generated = 0;
  int32_t last_token = 0;
  std::vector<SampledToken> kept;  // At most the first token, while no stream is open.
  int new_page = -1;               // The last of `pages`, until a step has told of it.

  std::optional<absl::StatusOr<FinishReason>> outcome;  // kEnded.
};

// What an ended request leaves behind. Its pages are quarantined until the lease table has drained
// and the step that reads and writes them is over. So long the tree keeps what it shares.
struct Hold {
  std::vector<int> pages;  // Its own.
  PageTree::Node prefix = 0;
  uint32_t slot = 0;
  RankSet not_drained = 0;
  bool in_step = false;  // The running step uses the pages.
};

struct DecodeCore::State {
  DecodeLimits limits;
  int page_count = 0;  // The pool's: with several ranks the smallest of theirs.
  BlockPool pool;
  std::optional<PageTree> tree;  // Without caching: none.
  uint64_t evicted_pages_total = 0;
  uint64_t reused_pages_total = 0;
  uint64_t retractions_total = 0;
  bool grows = true;     // Every rank knows of pages that come later.
  int rows_in_want = 0;  // They lacked a page when the last step began.
  // What pages are free or cached changes with each of these. The queue's head that found too few
  // looks again after the next one, since looking reads its whole prompt.
  uint64_t page_changes = 0;
  std::pair<uint64_t, uint64_t> found_too_few;  // The head's attempt, and page_changes then.
  bool joined = false;
  std::vector<InstanceRef> followers;  // From the last RanksJoined.
  absl::Status lost = absl::UnavailableError("they have not been linked yet");
  std::map<uint64_t, Request> requests;  // By attempt; ordered for replay.
  std::deque<uint64_t> queue;            // Waiting attempts, first come first.
  std::vector<uint64_t> batch;           // Committed attempts in the order of their commits.
  std::map<uint64_t, Hold> holds;        // By generation.
  // Generation -> attempt, while it is granting, reserved or committed: by age.
  std::map<uint64_t, uint64_t> granted;
  std::set<std::pair<int64_t, uint64_t>> deadlines;  // (DueUs, attempt)
  std::deque<uint32_t> free_slots;
  std::deque<uint64_t> kept_outcomes;  // Attempts in kEnded, oldest first.
  std::deque<uint64_t> early_aborts;
  uint64_t last_generation = 0;
  uint64_t last_step = 0;
  std::optional<uint64_t> running_step;
  std::map<uint64_t, uint64_t> in_step;  // Generation -> attempt, of the running step.
  bool draining = false;
  int64_t drain_deadline_us = kNeverUs;
  uint64_t drained_generation = 0;  // The last one that was given out before the drain.
  DrainCounts drain_counts;

  int64_t now_us = 0;
  std::vector<Action>* actions = nullptr;  // For the Handle call under way.

  explicit State(DecodeLimits l)
      : limits(std::move(l)),
        page_count(limits.page_count),
        pool(limits.page_count),
        joined(limits.ranks == 1) {
    if (limits.caches) tree.emplace(limits.layout.page_size);
    if (limits.kv_heads == 0) limits.kv_heads = limits.layout.kv_heads;
    for (int slot = 0; slot < limits.max_running_requests; ++slot) {
      free_slots.push_back(static_cast<uint32_t>(slot));
    }
  }

  void On(const ReserveRequested& event);
  void On(const StreamOpened& event);
  void On(const AbortRequested& event);
  void On(const StepFinished& event);
  void On(const DrainBegan& event);
  void On(const FlushCache& event);
  void On(const Tick& event);
  void On(const KvCommitted& event) { Committed(0, event); }
  void On(const KvFailed& event) { Failed(event); }
  void On(const KvDrained& event) { Drained(0, event); }
  void On(const RanksJoined& event);
  void On(const RanksLost& event);
  void On(const FollowerGranted& event);
  void On(const FollowerHeard& event);

  absl::Status CheckReserve(const ReserveRequested& event) const;
  absl::Status CheckWriters(const std::vector<KvWriter>& writers) const;
  absl::Status CheckSources(std::span<const KvWriter> stage) const;
  int PagesFor(const Request& request) const {
    return limits.layout.PagesFor(request.prompt_tokens + request.token_limit);
  }
  void AdmitWaiting();

  // growth.cc
  int PagesAtFirst(const Request& request) const;
  bool LacksPage(const Request& request) const;
  void GrowRows();
  void MakeRoomForRows();
  int PagesToReturn(int own, PageTree::Node prefix) const;
  void Retract(uint64_t attempt_id);

  // cache.cc
  int AvailablePages() const;             // Free, or given up by the cache.
  std::vector<int> TakePages(int count);  // So many must be available.
  bool AllocatePages(Request& request);
  void KeepPrompt(Request& request);
  void KeepText(Request& request);

  void StartStep();

  // When the request ends if nothing happens, and how to change what that depends on.
  int64_t DueUs(const Request& request) const;
  bool LacksStream(const Request& request) const {
    const bool has_ticket = request.phase != Phase::kWaiting && request.phase != Phase::kGranting;
    return has_ticket && !request.stream_open;
  }
  void Arm(uint64_t attempt_id);
  void Disarm(uint64_t attempt_id);
  void EndOverdue();

  // ranks.cc
  absl::Status RefuseUntilJoined() const;
  static absl::Status FailureOf(const absl::Status& step);
  void Grant(uint64_t attempt_id, Request& request);
  void HandOutTicket(uint64_t attempt_id, Request& request);
  void Committed(int rank, const KvCommitted& event);
  void Failed(const KvFailed& event);
  void Drained(int rank, const KvDrained& event);

  // drain.cc
  absl::Status RefuseToBegin();
  void EndDrain();
  absl::Status CheckDrain() const;

  bool IsInVocabulary(int32_t token) const { return token >= 0 && token < limits.vocab_size; }
  void Take(uint64_t attempt_id, const SampledToken& token);

  // The ways out: before a ticket; by itself, kept for a stream that opens later; at once.
  void Refuse(uint64_t attempt_id, absl::Status status);
  void Complete(uint64_t attempt_id, absl::StatusOr<FinishReason> outcome);
  void KeepOutcome(uint64_t attempt_id);
  void EndWith(uint64_t attempt_id, absl::Status status);
  void GiveBack(uint64_t attempt_id, Request& request);
  void Erase(uint64_t attempt_id);
  void ReleaseIfUnused(uint64_t generation);

  // The attempt with that grant, while it is reserved or committed.
  std::optional<uint64_t> HolderOf(uint32_t slot, uint64_t generation) const;
  // Blames this process, unless the status already blames another rank.
  absl::Status Own(absl::Status status) const {
    if (LegOf(status).has_value()) return status;
    return WithLeg(std::move(status), "decode", limits.self.id);
  }
  void Emit(Action action) { actions->push_back(std::move(action)); }
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_CORE_DECODE_STATE_H_
