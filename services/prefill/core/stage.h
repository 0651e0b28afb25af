// One stage of a chain: applies plans in order and exactly once, computes, passes activations on
// under credits, and sends its layers' KV of every chunk towards the ticket's pages. It decides
// nothing: a gap, a duplicate or an epoch that is yet to come is an error that ends the epoch. What
// is left of an older epoch is ignored.
//
// Plans are given to the executor ahead, up to `plans_in_flight` of them, each as soon as its input
// and its output buffer are there; it runs them in this order and tells of their ends in this
// order. So the next one is at hand when one ends, and no thread has to be woken in between.
//
// A plan takes effect when its turn comes, which is when those before it have been computed: an
// abort waits for them, since they read the pages that it gives up, and every stage must compute
// the same rows. A plan without items uses no buffer and is done in its turn.
//
// A request without a ticket is decoded by the chain: behind its prompt it has items of one token,
// that an earlier plan has drawn. No KV of it is sent, and an entry of `aborts` ends it. If others
// have read the prompt, and drawn the first token behind it, such an item is its first.
//
// A request that fails here (its KV can't be sent) is reported closed as soon as nothing of it is
// being sent, but remembered until its final item or its abort, as its rows are still to be
// computed.
//
// Overlap: while plan k computes, the receive of k+1's activations is posted or k+1 waits behind it
// in the executor, and k-1's activations and KV are being sent: activations first, since the next
// stage waits for them, and a plan's KV when they have left. While they wait for a credit KV goes.
// (Rejected: both at once, which share one network's or memory's bandwidth: each hop was longer by
// its KV. Holding all KV back while any activations leave: a chain that its network limits would
// never hand over.) A send is waited for only when its buffer is needed again. Where an epoch ends,
// or a plan fails, the plans behind it in the executor run to their end; nothing comes of them, and
// Quiet waits for them.
#ifndef SERVICES_PREFILL_CORE_STAGE_H_
#define SERVICES_PREFILL_CORE_STAGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/types/instance.h"
#include "common/types/sampled_token.h"
#include "common/types/ticket.h"
#include "services/prefill/core/plan.h"
#include "services/prefill/core/stage_times.h"

namespace baton::prefill {

struct StageOptions {
  int stage = 0;  // 0 .. stages - 1
  int stages = 1;
  TensorRank tensor_rank;  // Within the stage. The last stage's rank 0 samples tokens.
  // The model's. With the numbers of ranks on both sides it decides whether this rank hands KV
  // over: not if another rank has the same heads and writes them (common/kv/head_routes.h).
  int kv_heads = 1;
  int page_size = 0;
  int activation_credits = 2;  // Activation buffers of each stage; >= 1.
  int plan_limit = 64;  // Plans held and not given to the executor yet; more is a protocol error.
  // Plans that are with the executor at once: one computes, the others wait behind it. 1: the next
  // one only when one has ended. >= 1; on later stages the credits limit it, too.
  int plans_in_flight = 2;
};

// Whether a chain's tokens come out on this rank.
constexpr bool Draws(const StageOptions& options) {
  return options.stage + 1 == options.stages && options.tensor_rank.rank == 0;
}

// Output buffers of a stage: one for each plan in flight, and one that is being sent.
constexpr int OutputBuffers(int plans_in_flight) { return plans_in_flight + 1; }

// ---- Events ----
struct EpochBegan {  // Hello was accepted and what ran of the old epoch is over (Quiet).
  uint64_t epoch = 0;
};
struct EpochEnded {};  // The link broke: drop everything. In-flight work still reports its end.
struct PlanArrived {
  Plan plan;
};
struct ActivationsArrived {  // For stage > 0: plan `number`'s input is in buffer number % credits.
  uint64_t epoch = 0;
  uint64_t number = 0;
  int64_t since_us = kNeverUs;  // When they began to arrive; kNeverUs: only now.
};
struct CreditReturned {  // The next stage has consumed plan `number`'s activations.
  uint64_t epoch = 0;
  uint64_t number = 0;
};
// The next stage has told stage 0 that it is done with the plans up to `number`, so their credits
// are back: makes good for a credit that was lost on its way. Comes over the link, again and again.
struct NextStageDone {
  uint64_t epoch = 0;
  uint64_t number = 0;
};
struct ComputeFinished {  // In the order of RunCompute.
  uint64_t epoch = 0;
  uint64_t number = 0;
  absl::Status status;  // An error ends the epoch: the stages' KV would differ from now on.
  int64_t compute_us = 0;
  // Where tokens are drawn: for every item that is final or draws, in plan order, its token.
  std::vector<absl::StatusOr<SampledToken>> drawn;
  // There too: of the plan's items whose prompt's log-probabilities are wanted.
  struct Prompt {
    PromptTokens told;
    absl::Status status;  // An error ends this request alone.
  };
  std::vector<Prompt> prompts;
};
struct ActivationsSent {  // The output buffer of plan `number` may be used again.
  uint64_t epoch = 0;
  uint64_t number = 0;
  absl::Status status;
};
struct KvSent {  // A SendKv or SendCommit has ended; its pages are no longer read.
  uint64_t epoch = 0;
  uint64_t send_id = 0;
  absl::Status status;
  int64_t transfer_us = 0;
  int64_t bytes = 0;
};
using StageEvent =
    std::variant<EpochBegan, EpochEnded, PlanArrived, ActivationsArrived, CreditReturned,
                 NextStageDone, ComputeFinished, ActivationsSent, KvSent>;

// ---- Actions ----
// Run the plan's items through this stage's layers, after those that were to be run before: input
// buffer number % credits (stage > 0), output buffer number % OutputBuffers (not the last stage).
struct RunCompute {
  struct Item {
    PlanItem item;
    std::vector<int> pages;  // Cover [0, token_begin + token_count).
    int generated = 0;       // Tokens that were drawn before: the index of one drawn here.
    bool decodes = false;    // A decode step, no chunk.
    bool adopts = false;     // The first one of a request whose prompt others have read.
  };
  uint64_t epoch = 0;
  uint64_t number = 0;
  std::vector<Item> items;
  int64_t wait_us = 0;  // As PlanDone's.
};
struct SendActivations {
  uint64_t epoch = 0;
  uint64_t number = 0;
  int token_count = 0;
};
struct ReturnCredit {  // To the previous stage.
  uint64_t epoch = 0;
  uint64_t number = 0;
};
struct SendKv {
  uint64_t epoch = 0;
  uint64_t send_id = 0;
  uint64_t attempt_id = 0;
  Ticket ticket;
  int first_page = 0;      // Index within the prompt.
  std::vector<int> pages;  // This stage's pages with the bytes, in order.
};
struct SendCommit {
  uint64_t epoch = 0;
  uint64_t send_id = 0;
  uint64_t attempt_id = 0;
  Ticket ticket;
  std::optional<SampledToken> first_token;  // Where tokens are drawn.
};
struct CancelKv {  // It is not wanted any more: end what is not being sent yet.
  uint64_t epoch = 0;
  uint64_t attempt_id = 0;
};
struct ReportPlanDone {
  uint64_t epoch = 0;
  PlanDone done;
};
struct ReportRequestClosed {
  uint64_t epoch = 0;
  RequestClosed closed;
};
struct EndEpoch {  // A protocol or compute error: break the link with this status.
  absl::Status status;
};
using StageAction = std::variant<RunCompute, SendActivations, ReturnCredit, SendKv, SendCommit,
                                 CancelKv, ReportPlanDone, ReportRequestClosed, EndEpoch>;

// The checksum sum of a request's runs belongs to the shell, which sees the bytes.
class Stage {
 public:
  explicit Stage(StageOptions options);
  ~Stage();

  void Handle(const StageEvent& event, int64_t now_us, std::vector<StageAction>& actions);
  // Times are those up to the last event; this adds what has passed since. `receiving_since_us`:
  // since when activations have been arriving, if they are.
  void AccountTime(int64_t now_us, int64_t receiving_since_us = kNeverUs);
  const StageTimes& times() const;

  StageDoing doing() const;
  bool Quiet() const;                    // Nothing computing or being sent: a new epoch may begin.
  bool AtRest() const;                   // Quiet, and no open request or plan.
  int held_pages() const;                // By requests not forgotten yet.
  absl::Status CheckInvariants() const;  // For tests; defined in testing/.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_STAGE_H_
