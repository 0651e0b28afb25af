// The router's decisions: admission, pairing, and each request as one transaction over two legs.
// Event in, actions out; deterministic.
//
// A transaction: ADMITTED -> WAITING (no pair is ready and one is expected, or none that is has
// room) -> RESERVING (Decode.Reserve) -> PREFILLING (stream open, Prefill.Start sent) -> DECODING
// (first token seen) -> done, with SETTLING between the last two when Start has not answered yet.
// On a colocated chain PREFILLING comes first, and one call (Prefill.Generate) is both legs: it is
// the prefill leg's, whose failures it has.
// Either leg's failure ends the other at once. A failure before the first token reached the client
// is retried once on another pair within the deadline; what a worker refuses since it is full is no
// failure, and tried again where there is room, within the retry budget. The client gets exactly
// one terminal FinishCall (I2).
#ifndef SERVICES_ROUTER_CORE_ROUTER_CORE_H_
#define SERVICES_ROUTER_CORE_ROUTER_CORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/types/drain_counts.h"
#include "common/types/instance.h"
#include "common/types/sampled_token.h"
#include "common/types/ticket.h"
#include "services/router/core/learned_limit.h"
#include "services/router/core/membership.h"
#include "services/router/core/policies/policy.h"
#include "services/router/core/rate_limits.h"
#include "services/router/core/retry_budget.h"

namespace baton::router {

struct RouterLimits {
  uint64_t incarnation = 0;  // This router's. Its low half is the high half of attempt ids.
  int max_requests = 0;      // In flight; beyond: RESOURCE_EXHAUSTED.
  // New requests without a pair or room; beyond: RESOURCE_EXHAUSTED. 0: none waits.
  int max_waiting = 0;
  // How long a request may wait for room, also by what is predicted; 0: until its deadline.
  int64_t max_queue_us = 0;
  uint64_t seed = 0;  // Seeds all random choices.
  // How long a request waits for a pair while one is expected; 0: not at all. Also the grace of
  // MembershipOptions, which says when one is.
  int64_t pairing_timeout_us = 0;
  int max_attempts = 2;  // Before the first token.
  // How often a request goes on on another pair after its first token; attempts that a drain hands
  // back are not counted. 0: it never does.
  int max_resumes = 2;
  // How long a complete answer waits for Prefill.Start's, which brings the report. The chain has
  // sent everything by then, so it is on its way.
  int64_t settle_us = 200'000;
  RetryBudgetOptions retry_budget;
  RateLimitOptions rate_limits;   // Each tenant's.
  BackoffRange overload_backoff;  // Before a worker that is full is asked for more.
  // A Tick comes at least this often, so that the router sees its own pauses (pause.h): a quarter
  // of a lease. 0: it does not.
  int64_t beat_us = 0;
  Policy policy = Policy::kCost;
  bool tells_decisions = false;
  MembershipOptions membership;
};

// ---- Events: the cluster ----
// A worker asks for a lease, by a call that stands for as long as the lease does.
struct LeaseAsked {
  uint64_t rpc_id = 0;  // Names the call from here on; never used again.
  WorkerInfo worker;
  std::vector<uint64_t> held_by;  // Routers that hold it by other calls.
  uint64_t call_number = 0;       // RegisterRequest.call_number.
};
struct HeartbeatReceived {
  uint64_t rpc_id = 0;
  bool ready = false;
  WorkerLoad load;
  bool draining = false;         // It takes nothing new.
  bool leaving = false;          // Its last one: it is gone with this event.
  std::vector<uint64_t> linked;  // HeartbeatRequest.linked.
  std::string why_not_ready;
  // PrefixKeys of prompts that other routers gave its chain.
  std::vector<std::vector<uint64_t>> taken_prompts;
};
struct LeaseBroken {  // The worker has ended the call, or can't be reached by it.
  uint64_t rpc_id = 0;
};
struct DrainRequested {
  uint64_t rpc_id = 0;
  std::string instance_id;
};
// This router will leave: requests are taken for `settle_us` more, then refused; those that have
// not ended `timeout_us` later end then. Both with a status of EndedByDrain. Said again, the
// earlier times count.
struct RouterDrainBegan {
  int64_t settle_us = 0;
  int64_t timeout_us = 0;
};
// ---- Events: clients ----
struct CallSubmitted {
  uint64_t call_id = 0;    // The shell's handle, unique.
  std::string request_id;  // Unique among those in flight, else ALREADY_EXISTS.
  int prompt_tokens = 0;   // The shell keeps the tokens and parameters. >= 1
  int max_tokens = 0;      // >= 1
  int64_t deadline_us = kNeverUs;
  bool prompt_logprobs = false;  // Prompt tokens are sent before the answer's.
  bool clip = false;             // max_tokens is a default: shorten it to a pair's room.
  int priority = 0;              // Higher is served sooner.
  std::vector<uint64_t> prefix;  // PrefixKeys of the prompt.
  uint64_t routing_key = 0;      // RoutingKey; 0: the client gave none.
  std::string tenant;            // Whose limits it counts against.
};
struct ClientGone {  // Disconnected or cancelled: nothing more is said to it.
  uint64_t call_id = 0;
};
struct AbortCalled {  // Inference.Abort: the client is told FinishReason abort.
  uint64_t rpc_id = 0;
  std::string request_id;
};
struct CachesFlushed {};  // The chains are asked to give up what they have cached.
struct StopMatched {      // The shell has seen a stop string in the text: the answer is complete.
  uint64_t call_id = 0;
};
// ---- Events: legs; events of an attempt that is over are ignored. A colocated chain tells of the
// prompt before all else: PrefillEnded, TokenReceived..., DecodeEnded ----
struct ReserveReplied {
  uint64_t attempt_id = 0;
  absl::StatusOr<Ticket> ticket;
};
struct TokenReceived {
  uint64_t attempt_id = 0;
  SampledToken token;
};
struct DecodeEnded {  // The token stream's end; an error carries leg and instance.
  uint64_t attempt_id = 0;
  absl::StatusOr<FinishReason> outcome;
};
struct PrefillEnded {  // Start's answer, or what Prefill.Generate tells of the prompt, which is OK.
  uint64_t attempt_id = 0;
  absl::Status status;
  std::vector<SampledToken> prompt_tokens;  // With prompt_logprobs: all but the first.
  int cached_tokens = 0;                    // The prompt's first.
};
struct Tick {};
using Event =
    std::variant<LeaseAsked, HeartbeatReceived, LeaseBroken, DrainRequested, RouterDrainBegan,
                 CallSubmitted, ClientGone, AbortCalled, CachesFlushed, StopMatched, ReserveReplied,
                 TokenReceived, DecodeEnded, PrefillEnded, Tick>;

// ---- Actions ----
struct AnswerLease {  // Not OK: the call ends with it.
  uint64_t rpc_id = 0;
  absl::Status status;
  InstanceRef instance;
  bool repeated = false;  // It was refused with the same words before.
};
struct AnswerHeartbeat {
  uint64_t rpc_id = 0;
  std::vector<WorkerInfo> workers;  // Its members; none: those that it was told last.
  bool drain = false;               // An operator asks for it.
  int needed_requests = 0;          // That a draining worker must wait for before it leaves.
  bool tell_prompts_again = false;  // Those that it has taken: its chain is not whole yet.
};
// Wanted at once: the worker's members have changed, it is to drain, or to show that it lives.
struct AskHeartbeat {
  uint64_t rpc_id = 0;
};
struct EndLease {
  uint64_t rpc_id = 0;
  absl::Status status;
};
struct ReplyDrain {
  uint64_t rpc_id = 0;
  absl::Status status;
};
struct ReplyAbort {
  uint64_t rpc_id = 0;
  absl::Status status;
};
struct Reserve {
  uint64_t attempt_id = 0;
  uint64_t call_id = 0;  // Whose tokens and parameters to send.
  InstanceRef decode;
  std::vector<KvWriter> writers;
  int64_t deadline_us = kNeverUs;
  int max_tokens = 0;    // The call's, or with `clip` as many as there is room for.
  int drawn_tokens = 0;  // So many of the told tokens are read behind the prompt; all but one.
};
struct OpenStream {
  uint64_t attempt_id = 0;
  InstanceRef decode;
  uint64_t generation = 0;
  int64_t deadline_us = kNeverUs;
};
struct StartPrefill {
  uint64_t attempt_id = 0;
  uint64_t call_id = 0;
  InstanceRef stage0;
  Ticket ticket;
  int64_t deadline_us = kNeverUs;
  int drawn_tokens = 0;       // As Reserve's.
  int64_t head_start_us = 0;  // It counts as having come so much earlier (FairTurns).
};
struct StartGeneration {  // On a colocated chain: Prefill.Generate, in place of all three above.
  uint64_t attempt_id = 0;
  uint64_t call_id = 0;
  InstanceRef stage0;
  std::vector<KvWriter> stages;  // All processes of the chain.
  int64_t deadline_us = kNeverUs;
  int max_tokens = 0;         // As Reserve's,
  int drawn_tokens = 0;       // and this.
  int64_t head_start_us = 0;  // As StartPrefill's.
};
struct AbortPrefill {  // Cancel Start's call or Prefill.Generate's, and send Abort.
  uint64_t attempt_id = 0;
  InstanceRef stage0;
  std::string reason;
};
struct AbortDecode {  // Cancel Reserve's call or the stream, and send Abort.
  uint64_t attempt_id = 0;
  InstanceRef decode;
  std::string reason;
};
struct DeliverPrompt {  // At most once, before the first DeliverToken.
  uint64_t call_id = 0;
  std::vector<SampledToken> tokens;  // All of the prompt's but the first.
};
struct DeliverToken {
  uint64_t call_id = 0;
  SampledToken token;
};
// One attempt's choice, and what came of it.
struct Decision {
  int attempt = 0;  // From 1.
  std::shared_ptr<const Considered> considered;
  int64_t begun_us = 0;
  int64_t ttft_us = -1;    // From then to its first token; -1: none came.
  int cached_tokens = -1;  // As its chain told; -1: it did not.
  std::string failure;     // Why it ended, if another one followed.
};
struct FinishCall {
  uint64_t call_id = 0;
  absl::StatusOr<FinishReason> outcome;  // An error carries leg and instance.
  int attempts = 0;
  int resumes = 0;                  // Those of the attempts that began after the first token.
  std::string chain_id;             // The last attempt's; empty if none was paired.
  std::string decode_instance;      // Stage 0 of a colocated chain.
  std::vector<Decision> decisions;  // With `tells_decisions`: of all attempts.
};
using Action = std::variant<AnswerLease, AnswerHeartbeat, AskHeartbeat, EndLease, ReplyDrain,
                            ReplyAbort, Reserve, OpenStream, StartPrefill, StartGeneration,
                            AbortPrefill, AbortDecode, DeliverPrompt, DeliverToken, FinishCall>;

// Requests that were begun again, by why, and full workers' refusals, begun again or not.
struct RetryCounts {
  int64_t failure_total = 0;
  int64_t drain_total = 0;
  int64_t overload_total = 0;
  int64_t refused_total = 0;
};

// Requests that went on on another pair, by what that pair drew first.
struct ResumeCounts {
  int64_t continued_total = 0;  // The last token that was told, again.
  int64_t diverged_total = 0;   // Another one.
};

// Requests that were refused since others waited.
struct QueueCounts {
  int64_t full_total = 0;       // As many waited as may.
  int64_t predicted_total = 0;  // They would have waited for longer than they may,
  int64_t waited_total = 0;     // or have.
  int64_t gave_way_total = 0;   // To a tenant that had fewer in the queue.
};

// What the router predicted to be cached, and what was.
struct PredictionCounts {
  int64_t uncached_total = 0;  // Choices, by ChoiceKind.
  int64_t cached_total = 0;
  int64_t passed_over_total = 0;
  int64_t predicted_tokens_total = 0;  // On prompts that chains are through with.
  int64_t cached_tokens_total = 0;     // As they reported, of the same.
};

struct RouterLoad {
  int in_flight = 0;
  int waiting = 0;  // For a pair, or room.
  int reserving = 0;
  int prefilling = 0;
  int decoding = 0;
  RetryCounts retries_prefill;  // By the leg that failed, drains or is full.
  RetryCounts retries_decode;
  ResumeCounts resumes;
  int64_t budget_exhausted_total = 0;   // Retries that the budget did not allow.
  int64_t pauses_total = 0;             // This router stood still, or was that late.
  int64_t leases_expired_total = 0;     // Workers that fell silent.
  int64_t accounting_errors_total = 0;  // Accounting that did not agree: a bug, noticed.
  DrainCounts drain;                    // Requests that drains ended.
  PredictionCounts predictions;
  RateLimitCounts limited;  // Refused, since their tenants had asked for too much.
  QueueCounts queue;

  RetryCounts& RetriesOf(Role leg) {
    return leg == Role::kPrefill ? retries_prefill : retries_decode;
  }
};

enum class RouterDrain {
  kServing,
  kSettling,  // Takes requests, and says that it is not ready.
  kRefusing,  // Takes none; some run.
  kDrained,   // None runs.
};

// What a request that comes now would meet.
enum class Outlook {
  kServed,   // A pair is ready.
  kWaits,    // None is; one is expected, and the request would wait for it.
  kRefused,  // Membership::WhatIsMissing says why.
};

class RouterCore {
 public:
  explicit RouterCore(RouterLimits limits);
  ~RouterCore();

  void Handle(const Event& event, int64_t now_us, std::vector<Action>& actions);
  // When a Tick is due. Late ones are taken for pauses of the process.
  int64_t NextDeadlineUs() const;

  // What a FinishCall would tell if the call ended with this error now, for calls that the shell
  // ends (ClientGone).
  FinishCall EndOf(uint64_t call_id, absl::Status error) const;
  const Membership& membership() const;
  Outlook outlook(int64_t now_us) const;
  RouterDrain drain(int64_t now_us) const;
  RouterLoad load() const;

  // For tests; defined in testing/.
  absl::Status CheckInvariants() const;
  bool AtRest() const;  // No transaction, no attempt.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_ROUTER_CORE_H_
