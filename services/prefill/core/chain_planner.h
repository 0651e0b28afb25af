// Stage 0's decisions for its whole chain: which chunks of which prompts run next, on which pages,
// and what ends. The only decision maker of a chain (rule 2): later stages apply its plans.
//
// A request: QUEUED -> OPEN (its first plan is out) -> closed by every stage -> gone. Its terminal
// action (FinishRequest) comes exactly once (I2): when every stage has closed it, or at once when
// it fails. A failed one stays, finished, until the stages have closed it, for its pages are freed
// only when every stage has closed it and is done with every plan that names it.
//
// A request's prompt may also be read by others, who write its KV into pages that are granted to
// them (planner_grants.cc): it is OPEN from its grant on, and decoded like any other from the
// commit on. So a decode service is a chain whose prompts come that way.
//
// A request without a ticket is decoded by the chain (planner_decoding.cc): each plan begins with
// rows of one token, for requests whose last token is known, and has its chunks beside them. The
// request ends when stage 0 has seen its last token, and the next plan closes it on every stage.
//
// Rows and chunks share plans under guards that hold both ways:
// - A token that is known is fed by one of the next S plans, S the slots for plans that draw. With
//   decode_max_wait_us it is fed by the next one if it has waited for so long, and no plan that it
//   may wait for is predicted to take a stage longer, or a quarter longer than one with a page.
// - Prompts have a page of every plan at least, whatever the bounds on time say, and as many as
//   take a quarter longer.
//
// Prompts have turns, by arrival, priority and the policy (planner_queue.cc). "Oldest" below is the
// one whose turn comes first.
//
// A prompt is admitted when the pages for all of it are free, and for the first tokens that the
// chain will decode (reserved_decode_tokens). One that decodes takes further pages as it grows, and
// when none is left the youngest gives way (planner_growth.cc). The oldest waiting one is overtaken
// only by prompts that leave pages and a place for it.
//
// KV outlives its request (planner_cache.cc): a prompt that begins with pages that are cached has
// them from the beginning, and its chunks begin behind them.
//
// The oldest open prompt with tokens left leads: it fills the plans, and the next oldest fills what
// it leaves of its last one. But while there are shorter ones (less to compute than the leader),
// open or waiting, half of each plan goes to them, the shortest first. So, in whole pages of what
// the plans that come after it take, give or take two plans,
// - no prompt starves: it is planned whole within twice what it and older ones have left;
// - no prompt waits for an older one of a million tokens: once there are pages for it, it is
//   planned whole within twice what it and shorter ones have left.
// What a prompt takes is the time on the stage that takes longest for the leader's chunk
// (common/chunking/chunk_plan.h): behind a million tokens one takes as long as hundreds of a
// short prompt, which is therefore through with the next plan or two. It is counted in tokens while
// costs are not known, and where the rule that sizes plans counts tokens (fixed, sglang); and a
// plan never has more tokens than there is room for in its buffers. A plan that holds whole prompts
// is not shared: without a chunk size no prompt is to be cut.
//
// In a chain of one stage the next plan is made when that is about to be free (kIssueLeadUs), once
// costs are known: what comes while a long plan runs is in the next one, not in the one after it.
//
// What plans cost each stage is learned from how long they took (common/chunking/cost_fit.h), epoch
// after epoch, beginning with what is known from elsewhere (ChainUp); the rule that sets the size
// of plans asks for it (chunk_policy.h). Until it is known for every stage, or when it predicts
// badly, the rule does without.
//
// Rejected: turns (processor sharing), in which of two long prompts both end when the second would;
// the shortest first and nothing else, which starves the long.
#ifndef SERVICES_PREFILL_CORE_CHAIN_PLANNER_H_
#define SERVICES_PREFILL_CORE_CHAIN_PLANNER_H_

#include <algorithm>
#include <climits>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/chunking/chunk_policy.h"
#include "common/chunking/cost_fit.h"
#include "common/chunking/stage_cost.h"
#include "common/kv/block_pool.h"
#include "common/kv/lease_table.h"
#include "common/types/drain_counts.h"
#include "common/types/sampled_token.h"
#include "common/types/stop_rule.h"
#include "common/types/ticket.h"
#include "services/prefill/core/plan.h"

namespace baton::prefill {

// One part in so many of a plan is for prompts that are shorter than the leader: half of it.
constexpr int kShorterShare = 2;

// What gives a prompt a head start over others that wait (planner_queue.cc).
enum class QueueOrder {
  kArrival,
  kLongestPrefix,  // Tokens that were cached when it came.
  kLongestOutput,  // Tokens that it may generate.
  kRandom,
};

struct PlannerLimits {
  int page_size = 0;
  int chunk_tokens = 0;  // Tokens per plan: a multiple of page_size, or INT_MAX for whole prompts
                         // (a plan then holds at most max_context_tokens). With other rules
                         // than kFixed, the most.
  int plan_window = 0;   // Plans issued and not yet done on the last stage. >= 1.
  int stage0_lead = 2;   // Plans issued and not yet done on stage 0: k runs, k+1 waits.
  int max_open_requests = 0;    // In the chain at once.
  int max_queued_requests = 0;  // Beyond: RESOURCE_EXHAUSTED.
  int max_context_tokens = 0;
  ChunkRule chunk_rule = ChunkRule::kFixed;
  double smooth_factor = 0.75;  // For kSglang.
  int later_tokens = INT_MAX;   // For kSglang: ChunkOptions::later_tokens.
  // Shorter prompts get a share of the leader's plans. If false, plans are filled in the order of
  // turns, and a prompt behind a million tokens waits for all of them.
  bool shares_plans = true;
  QueueOrder queue_order = QueueOrder::kArrival;
  // How long a stage may take from having a plan's input sent to it to being done with the plan,
  // beside the computation (planner_progress.cc). > 0.
  int64_t plan_grace_us = 3'000'000;
  // How long a stage may take to close a request that is over: failed, aborted, or past its
  // deadline, and computed as far as it will be. What it still sends ends within a few seconds,
  // when the transport completes it or the endpoint fails (common/transport/endpoint_life.h).
  int64_t close_grace_us = 15'000'000;
  int vocab_size = INT_MAX;  // Tokens that are drawn are below it.
  // Tokens of prompts in a plan. One prompt alone may have more where none is cut.
  int input_tokens = INT_MAX;
  // A plan with decode steps has no more chunks than it is predicted to take so long for (the
  // guards above); while costs are not known, two pages. 0: it has as many as without them.
  int64_t target_itl_us = 0;
  // How long a token that was drawn waits, at most: for its plan, and in it or behind another for
  // stage 0 (the guards above). 0: as long as plans take.
  int64_t decode_max_wait_us = 0;
  bool decodes = false;  // Requests may come without a ticket.
  // Plans with decode steps that are under way, beyond one for each stage,
  int extra_slots = 0;
  // Where one process is the whole chain, and there are no extra_slots: a plan may have the steps
  // behind those of the plan that runs (kTokenAhead).
  bool feeds_ahead = false;
  int slot_requests = INT_MAX;  // and how many steps one may have. >= 1.
  // How many steps a plan has when so many requests are dealt out to the slots.
  int RowsOfSlot(int requests, int stages) const {
    const int slots = stages + extra_slots;
    return std::min((requests + slots - 1) / slots, slot_requests);
  }
  // How many of a request's new tokens have pages from the beginning. >= 1.
  int reserved_decode_tokens = INT_MAX;
  // By how much texts are expected to grow before more requests are admitted (planner_growth.cc):
  // 1 is as much as SGLang expects. 0: no more than they have pages for.
  double conservativeness = 0;
  bool caches = false;  // KV of finished requests is kept for prompts that begin alike.
  // Who grants, where KV is granted to the chain; its id is empty: none is.
  InstanceRef granting;
  int layers = 0;                      // The model's,
  int kv_heads = 0;                    // and in its layers.
  const char* name = "prefill chain";  // As messages call the chain.
};

// How plans are cut by them: whole prompts are still bounded by the longest, as buffers are.
ChunkOptions ChunkOptionsOf(const PlannerLimits& limits);

// ---- Events ----
struct ChainUp {  // Every stage is linked and ready under `epoch`.
  uint64_t epoch = 0;
  int stages = 0;
  int page_count = 0;             // The smallest of the stages'.
  std::vector<int> stage_layers;  // By stage: what was learned of others does not hold.
  // By stage, or empty: nothing is known. Heeded where nothing was learned of these stages.
  std::vector<KnownCost> known_costs;
  int ranks = 1;  // Processes of each stage: it is done with what all of them are done with.
  // Where KV is granted: the other members, member 1 and on, and the newest generation that one was
  // granted, by former lives of this process too. A late message for an old grant must not be taken
  // for a new one's.
  std::vector<InstanceRef> followers = {};
  uint64_t newest_generation = 0;
};
struct ChainDown {  // A link broke or a member left: everything in the chain ends with `reason`.
  absl::Status reason;  // Carries leg "prefill" and the instance.
};
struct StartRequested {
  uint64_t attempt_id = 0;
  int prompt_tokens = 0;
  std::optional<Ticket> ticket;  // None: the chain decodes it.
  int64_t deadline_us = kNeverUs;
  bool prompt_logprobs = false;  // The outcome has them for every token but the first.
  StopRule stop;                 // Without a ticket.
  // The prompt, for the prefix cache; null: it is not looked up, and not kept.
  std::shared_ptr<const std::vector<int32_t>> tokens = nullptr;
  std::string cache_salt = {};  // Prompts with different ones share nothing.
  int priority = 0;             // From -kMaxPriority to kMaxPriority; higher is sooner.
  int64_t head_start_us = 0;    // It counts as having come so much earlier.
  // They read the prompt and write its KV, each of its layers' heads once; empty: the chain reads
  // it.
  std::vector<KvWriter> writers = {};
};
struct AbortRequested {  // Unknown attempts are ignored: an abort may come after the end.
  uint64_t attempt_id = 0;
  absl::Status reason;
};
struct StagePlanDone {
  int stage = 0;
  uint64_t epoch = 0;
  PlanDone done;
  int rank = 0;
};
struct StageRequestClosed {  // Not OK: the stage gave the request up (its KV could not be sent).
  int stage = 0;
  uint64_t epoch = 0;
  RequestClosed closed;
  int rank = 0;
};
// Stage 0 will leave: new requests are refused, and what is not through the chain at the deadline
// ends then; both with a status of EndedByDrain. Said again, the earlier deadline counts.
struct DrainBegan {
  int64_t deadline_us = kNeverUs;
};
// Gives up the cached pages that no open request uses.
struct FlushCache {};
struct Tick {};
// A member's lease table takes the KV of a grant from now on; of member 0 that is not waited for.
struct MemberGranted {
  int member = 0;
  uint32_t slot = 0;
  uint64_t generation = 0;
};
// From a member's lease table. What comes of an older epoch has no effect.
struct KvHeard {
  int member = 0;
  LeaseEvent event;
};
using PlannerEvent =
    std::variant<ChainUp, ChainDown, StartRequested, AbortRequested, StagePlanDone,
                 StageRequestClosed, DrainBegan, FlushCache, Tick, MemberGranted, KvHeard>;

// ---- Actions ----
struct IssuePlan {  // To every stage, stage 0 included, in this order.
  Plan plan;
  // How long the token of each decode step has waited; these are the first items.
  std::vector<int64_t> decode_waits_us = {};
};
struct ChunkTiming {
  int token_begin = 0;
  int token_count = 0;
  std::vector<PlanDone> stages;  // By stage.
};
struct PrefillOutcome {
  std::vector<ChunkTiming> chunks;
  std::vector<SampledToken> prompt_tokens;  // With prompt_logprobs: from the prompt's second on.
  int cached_tokens = 0;                    // The prompt's first: their KV was there.
  int64_t queue_us = 0;
  int64_t compute_us = 0;
  int64_t kv_bytes = 0;
  int64_t kv_transfer_us = 0;
  int64_t kv_exposed_us = 0;
};
// One for each member of the chain.
struct GrantKv {
  int member = 0;
  KvGrant grant;  // Its writers are those that have layers and heads for the member.
};
struct RevokeKv {  // On every member; each answers by KvDrained.
  uint32_t slot = 0;
  uint64_t generation = 0;
};
// Every member's table takes the request's KV, member 0's once it has done its GrantKv.
struct HandOutTicket {
  uint64_t attempt_id = 0;
  Ticket ticket;
};
// The prompt of a request without a ticket is computed. Comes once, before its first token.
struct PromptDone {
  uint64_t attempt_id = 0;
  PrefillOutcome outcome;
};
// The next token of a request without a ticket, a stop token too.
struct DeliverToken {
  uint64_t attempt_id = 0;
  SampledToken token;
};
// A StartRequested that is refused is answered within the same Handle. ALREADY_EXISTS answers that
// second call alone: the attempt that has the id goes on.
struct FinishRequest {
  uint64_t attempt_id = 0;
  absl::Status status;
  PrefillOutcome outcome;  // As far as it came, and PromptDone has not told it.
  FinishReason reason = FinishReason::kLength;  // Why the chain ended what it decoded.
};
// The stage does not get on, though its links stand: what was sent to it is lost. Ends the epoch.
struct FailChain {
  int stage = 0;
  absl::Status status;
  int rank = 0;
};
// A stage is done with a plan that it was predicted to take so long for.
struct ObservePlan {
  int stage = 0;
  int64_t tokens = 0;
  double predicted_us = 0;
  int64_t compute_us = 0;
};
using PlannerAction = std::variant<IssuePlan, PromptDone, DeliverToken, FinishRequest, FailChain,
                                   ObservePlan, GrantKv, RevokeKv, HandOutTicket>;

// What is known of a stage's costs.
struct LearnedCost {
  std::optional<StageCost> cost;
  const char* missing = nullptr;  // Why there is no cost (CostFit::missing).
  double error = 0;               // CostFit::error.
  uint64_t plans = 0;             // That it was learned from, beside what was known before.
  int layers = 0;                 // The stage's, from ChainUp.
};

// For an open prompt that the last stage is not through with, or that is handed over: it has
// computed its first `computed_tokens`, at least one.
struct PromptProgress {
  uint64_t attempt_id = 0;
  int computed_tokens = 0;
};

struct PlannerLoad {
  int queued = 0;
  int open = 0;
  int64_t queued_tokens = 0;         // Not yet planned.
  int free_pages = 0;                // Those that the cache would give up are free,
  int owned_pages = 0;               // and not owned.
  int cached_pages = 0;              // All of the cache, also what open requests use.
  uint64_t evicted_pages_total = 0;  // By the cache, for pages that a request lacked.
  uint64_t retractions_total = 0;    // Requests that gave way to older ones' growth.
  uint64_t reused_pages_total = 0;   // Pages of granted prompts that were cached, and not sent.
  int ending_pages = 0;              // Owned by requests that have ended, and come free soon.
  int plans_in_flight = 0;
  std::vector<PromptProgress> prompts;  // At most max_open_requests.
};

class ChainPlanner {
 public:
  explicit ChainPlanner(const PlannerLimits& limits);
  ~ChainPlanner();

  void Handle(const PlannerEvent& event, int64_t now_us, std::vector<PlannerAction>& actions);
  int64_t NextDeadlineUs() const;

  bool up() const { return readiness().ok(); }
  absl::Status readiness() const;  // UNAVAILABLE with the reason while the chain is down.
  int max_plan_tokens() const;     // No plan is larger.
  // Number of the last plan of this epoch that the stage is done with; 0: none, or no such stage.
  uint64_t plans_done(int stage) const;
  PlannerLoad load() const;
  std::vector<LearnedCost> costs() const;  // By stage; empty before the first epoch.
  const BlockPool* pool() const;           // nullptr: the chain is down.
  bool draining() const;
  DrainCounts drain_counts() const;
  bool AtRest() const;
  absl::Status CheckInvariants() const;  // For tests; defined in testing/.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_CHAIN_PLANNER_H_
