// Inside of RouterCore, shared by its source files; nothing else includes it. Events are handled in
// router_core.cc; attempts begin, fail and end in attempt.cc, requests without a pair wait in
// waiting.cc, what full workers refuse is tried again in overload.cc; workers' leases are kept
// in leases.cc.
#ifndef SERVICES_ROUTER_CORE_ROUTER_STATE_H_
#define SERVICES_ROUTER_CORE_ROUTER_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/instance.h"
#include "services/router/core/fair_queue.h"
#include "services/router/core/learned_cost.h"
#include "services/router/core/leases.h"
#include "services/router/core/membership.h"
#include "services/router/core/pairing.h"
#include "services/router/core/pause.h"
#include "services/router/core/retry_budget.h"
#include "services/router/core/router_core.h"
#include "services/router/core/transaction.h"

namespace baton::router {

struct RouterCore::State {
  explicit State(RouterLimits router_limits)
      : limits(router_limits),
        membership(limits.membership),
        pairing(limits.policy, limits.seed, limits.overload_backoff),
        budget(limits.retry_budget),
        rates(limits.rate_limits),
        pause(limits.beat_us) {
    if (limits.tells_decisions) pairing.KeepConsidered();
  }

  RouterLimits limits;
  Membership membership;
  Pairing pairing;
  TransactionTable table;
  RetryBudget budget;
  RateLimits rates;
  PauseWatch pause;
  int64_t pair_awaited_until_us =
      0;  // A pair is expected at least until then: this router stood still.
  int64_t next_pause_counts_from_us = 0;  // When the next pause may say so again.
  Leases leases;
  FairQueue waiting;
  FairTurns turns;
  bool wait_for_room = false;  // All that wait; else for a pair.
  int64_t left_us = 0;         // When a request left the queue, or the queue began.
  RecentMean leave_every_us;
  uint64_t admitted = 0;
  uint64_t attempts_made = 0;
  uint64_t served = 0;  // First tokens, which show that workers serve.
  RouterLoad totals;    // Its counters; the gauges come from the table.
  int64_t drain_begun_us = kNeverUs;
  int64_t refuse_from_us = kNeverUs;     // The drain's settling is over.
  int64_t drain_deadline_us = kNeverUs;  // And so is the drain.

  // Valid while an event is handled.
  int64_t now_us = 0;
  std::vector<Action>* actions = nullptr;

  void Emit(Action action) { actions->push_back(std::move(action)); }

  void On(const LeaseAsked& event);
  void On(const HeartbeatReceived& event);
  void On(const LeaseBroken& event);
  void On(const DrainRequested& event);
  void On(const RouterDrainBegan& event);
  void On(const CallSubmitted& event);
  void On(const ClientGone& event);
  void On(const AbortCalled& event);
  void On(const CachesFlushed& event);
  void On(const StopMatched& event);
  void On(const ReserveReplied& event);
  void On(const TokenReceived& event);
  void On(const DecodeEnded& event);
  void On(const PrefillEnded& event);
  void On(const Tick& event);

  void LoseWorkers(const std::vector<Worker>& lost, const std::string& cause, bool left = false);
  void LoseWorker(const Worker& worker, const std::string& cause, bool left);

  // pause.cc
  void NoticePause();
  void ExcuseSilence();
  int64_t PairAwaitedUntilUs(int64_t at_us) const;

  // drain.cc
  absl::Status RefuseToBegin();
  void EndDrain();
  int64_t NextDrainUs() const;

  // leases.cc
  void Suspect(const InstanceRef& instance);
  void AskHeartbeatOf(const InstanceRef& instance);
  void EndLeaseOf(const InstanceRef& instance);
  void TellMembers();  // That the event has changed their lists.

  // waiting.cc
  int64_t GiveTurn(Transaction& txn);
  std::optional<uint64_t> GivesWayTo(const std::string& tenant) const;
  void GiveWay(uint64_t call_id);
  absl::Status MayQueue(const CallSubmitted& event);
  absl::Status NoPair(const std::string& what_happened) const;
  bool ExpectsPair(int64_t at_us) const;
  absl::Status MayWait() const;
  void Wait(Transaction& txn);
  int64_t WaitsUntilUs(const Transaction& txn) const;
  void WaitFor(bool room);
  void ServeWaiting();
  // Names the version if that is why there is no pair.
  absl::StatusOr<Choice> ChooseAgain(const Transaction& txn);
  void Refuse(Transaction& txn, const absl::Status& no_pair);
  void TimeOutWaiting(Transaction& txn);

  // overload.cc
  absl::Status MayWaitForRoom() const;
  bool MayWaitAgain() const;
  absl::Status TellOverload(const absl::Status& refusal) const;
  bool TryRefusedAgain(Transaction& txn, Role blamed, const absl::Status& refusal);
  bool TakeRetry();

  absl::Status CheckAdmissible(const CallSubmitted& event);
  void RefuseCall(const CallSubmitted& event, const absl::Status& status);
  void Begin(Transaction& txn, Choice choice);
  void CountChoice(ChoiceKind kind);
  void LearnPrompt(Transaction& txn, int cached_tokens);
  void LearnAnswer(const Transaction& txn);
  void FailAttempt(Transaction& txn, Role reporter, absl::Status status);
  bool MayBeginAgain(const Transaction& txn, bool handed_back) const;
  bool MayResume(const Transaction& txn, bool handed_back) const;
  bool Retry(Transaction& txn, Role blamed, const absl::Status& status);
  void SuspectBlamed(const Pair& pair, Role blamed, const absl::Status& status);
  void TellPrompt(Transaction& txn, const std::vector<SampledToken>& tokens);
  void TellToken(Transaction& txn, const SampledToken& token);
  void BeginDecoding(Transaction& txn);
  void Redrawn(Transaction& txn, int32_t token);
  void Complete(Transaction& txn, FinishReason reason);
  void TimeOut(Transaction& txn);

  void CloseDecode(Transaction& txn, const std::string& reason);
  void ClosePrefill(Transaction& txn, const std::string& reason);
  void CloseLegs(Transaction& txn, const std::string& reason);
  void NoteGrant(Transaction& txn);
  void EndPrefillWork(Transaction& txn);
  void EndWork(Transaction& txn);
  static FinishCall EndOf(const Transaction& txn, absl::StatusOr<FinishReason> outcome);
  void Finish(Transaction& txn, absl::StatusOr<FinishReason> outcome);
  void Remove(Transaction& txn);
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_ROUTER_STATE_H_
