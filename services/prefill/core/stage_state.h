// What a stage holds; private to stage.cc (plans and computing) and stage_transfers.cc.
#ifndef SERVICES_PREFILL_CORE_STAGE_STATE_H_
#define SERVICES_PREFILL_CORE_STAGE_STATE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "services/prefill/core/stage.h"

namespace baton::prefill {

struct Stage::State {
  struct Request {
    std::optional<Ticket> ticket;  // None: the chain decodes it.
    int prompt_tokens = 0;
    int read_tokens = 0;   // The prompt, and what was drawn before the request was retracted.
    bool adopted = false;  // Others have read its prompt, and drawn its first token.
    std::vector<int> pages;
    bool writes_kv = true;   // This rank, to any of the ticket's.
    int planned_tokens = 0;  // Cached, or in the plans that have arrived.
    int sent_pages = 0;      // That have been given to be sent, or that decode holds.
    int sends = 0;           // Under way, the commit's included.
    bool final_computed = false;
    bool abort_arrived = false;  // No later plan may name it.
    bool aborted = false;        // That plan's turn has come.
    bool closed = false;         // Reported.
    absl::Status failure;        // Not OK: sends nothing any more.
    int64_t final_computed_us = 0;
    RequestClosed report;

    bool sending() const { return !aborted && failure.ok(); }
  };

  struct HeldPlan {
    Plan plan;
    int64_t arrived_us = 0;
  };

  // Out of `plans`: with the executor, or, without items, waiting for those that are.
  struct UnderWay {
    uint64_t epoch = 0;
    Plan plan;
    int64_t wait_us = 0;
    bool in_effect = false;  // Its turn has come.
  };

  struct Send {
    uint64_t epoch = 0;
    uint64_t attempt_id = 0;
  };
  using KvAction = std::variant<SendKv, SendCommit>;

  explicit State(StageOptions stage_options) : options(stage_options) {}

  void On(const EpochBegan& event, int64_t now_us);
  void On(const EpochEnded& event, int64_t now_us);
  void On(const PlanArrived& event, int64_t now_us);
  void On(const ActivationsArrived& event, int64_t now_us);
  void On(const CreditReturned& event, int64_t now_us);
  void On(const NextStageDone& event, int64_t now_us);
  void On(const ComputeFinished& event, int64_t now_us);
  void On(const ActivationsSent& event, int64_t now_us);
  void On(const KvSent& event, int64_t now_us);

  bool Current(uint64_t event_epoch) const { return epoch != 0 && event_epoch == epoch; }
  void DropEpoch();
  void Break(absl::Status status);

  absl::Status CheckPlan(const Plan& plan) const;
  absl::Status CheckItem(const Plan& plan, const PlanItem& item) const;
  bool Fits(const PlanItem& item, const Request& request) const;
  Request RequestOf(const PlanOpen& open) const;
  absl::Status CheckOpen(const Plan& plan, const PlanOpen& open) const;
  void Forget(uint64_t attempt_id);
  void Accept(const Plan& plan);
  uint64_t OldestInput() const;
  bool WritesTo(const Ticket& ticket) const;

  void RunNext(int64_t now_us);
  bool Ready(const Plan& plan) const;
  uint64_t OldestOutput(uint64_t number) const;
  bool OutputBufferFree(uint64_t number) const;
  void TakeTurns();
  void ApplyAborts(const Plan& plan);
  RunCompute Compose(const HeldPlan& held, int64_t now_us) const;
  int WithExecutor() const;
  void PassActivations();

  absl::Status CheckResult(const Plan& plan, const ComputeFinished& event) const;
  std::vector<PromptTokens> TakePromptTokens(const ComputeFinished& event);
  std::vector<DrawnToken> TakeDrawn(const Plan& plan, const ComputeFinished& event) const;
  void SendComputed(const Plan& plan, const ComputeFinished& event, int64_t now_us);
  void SendCached(const Plan& plan);
  std::optional<SendKv> SendUpTo(int end_token, uint64_t attempt_id, Request& request);
  void ReleaseKv();
  void DropKv(uint64_t attempt_id, Request& request);
  uint64_t NewSend(uint64_t attempt_id, Request& request);
  void CloseIfSent(uint64_t attempt_id);

  void Emit(StageAction action) { actions->push_back(std::move(action)); }

  const StageOptions options;

  uint64_t epoch = 0;  // 0: none.
  uint64_t newest_epoch = 0;
  uint64_t last_number = 0;  // The last plan that has arrived.
  uint64_t applied = 0;      // Number of plans applied.
  std::deque<HeldPlan> plans;
  std::map<uint64_t, Request> requests;
  std::unordered_map<int, int> page_users;  // Requests by page: prompts with one prefix share some.
  int64_t free_since_us = 0;                // End of the last computation, if none is under way.

  std::set<uint64_t> inputs;                     // Plans whose activations are here.
  uint64_t last_input = 0;                       // The last plan given to the executor.
  std::deque<std::pair<uint64_t, int>> to_pass;  // Plan, tokens: computed, waits for a credit.
  std::set<uint64_t> uncredited;                 // Passed, not yet consumed by the next stage.
  uint64_t next_stage_done = 0;                  // What NextStageDone said last.

  // Under way, of whatever epoch: the memory that it reads or writes is in use. The first of the
  // plans has items, and is what the executor computes.
  std::deque<UnderWay> under_way;
  std::set<std::pair<uint64_t, uint64_t>> passing;  // (epoch, plan) activations being sent.
  std::map<uint64_t, Send> sends;
  uint64_t next_send_id = 1;
  // KV actions that wait until a plan's activations have left: by plan, this epoch's only.
  std::map<uint64_t, std::vector<KvAction>> kv_behind;

  StageTimes times;
  std::optional<int64_t> accounted_us;  // `times` covers up to here.

  std::vector<StageAction>* actions = nullptr;  // For the event that is being handled.
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_STAGE_STATE_H_
