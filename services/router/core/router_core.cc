#include "services/router/core/router_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/planted_bug.h"
#include "common/base/status.h"
#include "services/router/core/transaction.h"

namespace baton::router {
namespace {

const char* LegName(Leg leg) { return leg == Leg::kPrefill ? "prefill" : "decode"; }

// Which leg a failure is blamed on: the one that the status names, since decode may report that a
// stage fell silent, or a stage that decode did; else the one that reported it.
Leg BlamedLeg(const absl::Status& status, Leg reporter) {
  const auto named = LegOf(status);
  if (named == LegName(Leg::kPrefill)) return Leg::kPrefill;
  if (named == LegName(Leg::kDecode)) return Leg::kDecode;
  return reporter;
}

// Another pair would answer just the same, or there is no time left to ask it.
bool SameEverywhere(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return true;
    default:
      return false;
  }
}

}  // namespace

struct RouterCore::State {
  explicit State(RouterLimits router_limits)
      : limits(router_limits), membership(limits.membership), pairing(limits.policy) {}

  RouterLimits limits;
  Membership membership;
  Pairing pairing;
  TransactionTable table;
  uint64_t attempts_made = 0;
  RouterLoad totals;  // Its counters; the gauges come from the table.

  // Of the event that is being handled.
  int64_t now_us = 0;
  std::vector<Action>* actions = nullptr;

  void Act(Action action) { actions->push_back(std::move(action)); }

  void On(const RegisterRequested& event);
  void On(const HeartbeatReceived& event);
  void On(const DrainRequested& event);
  void On(const ClientRequested& event);
  void On(const ClientGone& event);
  void On(const AbortCalled& event);
  void On(const StopMatched& event);
  void On(const ReserveReplied& event);
  void On(const TokenReceived& event);
  void On(const DecodeEnded& event);
  void On(const PrefillEnded& event);
  void On(const Tick& event);

  void LoseWorkers(const std::vector<Worker>& lost, const std::string& cause);
  void LoseWorker(const Worker& worker, const std::string& cause);

  absl::StatusOr<Pair> Admit(const ClientRequested& event);
  void Begin(Transaction& txn, Pair pair);
  void FailAttempt(Transaction& txn, Leg reporter, absl::Status status);
  bool Retry(Transaction& txn, Leg blamed, const absl::Status& status);
  void SuspectBlamed(const Pair& pair, Leg blamed, const absl::Status& status);
  void Complete(Transaction& txn, FinishReason reason);
  void TimeOut(Transaction& txn);

  void CloseDecode(Transaction& txn, const std::string& reason);
  void ClosePrefill(Transaction& txn, const std::string& reason);
  void CloseLegs(Transaction& txn, const std::string& reason);
  void EndPrefillWork(Transaction& txn);
  void Finish(Transaction& txn, absl::StatusOr<FinishReason> outcome);
  void Remove(Transaction& txn);
};

// ---- The cluster ----

void RouterCore::State::On(const RegisterRequested& event) {
  std::vector<Worker> lost;
  Act(ReplyRegister{event.call, membership.Register(event.worker, now_us, lost)});
  LoseWorkers(lost, "was replaced by a new incarnation of itself");
}

void RouterCore::State::On(const HeartbeatReceived& event) {
  ReplyHeartbeat reply;
  reply.call = event.call;
  reply.status =
      membership.Heartbeat(event.instance, event.view_version, event.ready, event.load, now_us);
  if (reply.status.ok()) {
    pairing.ClearSuspicion(event.instance);
    reply.view_version = membership.view_version();
    reply.view_changed = event.view_version != reply.view_version;
    if (reply.view_changed) reply.workers = membership.View();
  }
  Act(std::move(reply));
}

void RouterCore::State::On(const DrainRequested& event) {
  Act(ReplyDrain{event.call, membership.Drain(event.instance_id)});
}

void RouterCore::State::LoseWorkers(const std::vector<Worker>& lost, const std::string& cause) {
  for (const Worker& worker : lost) LoseWorker(worker, cause);
}

void RouterCore::State::LoseWorker(const Worker& worker, const std::string& cause) {
  const InstanceRef& instance = worker.info.instance;
  const Leg leg = worker.info.role == Role::kPrefill ? Leg::kPrefill : Leg::kDecode;
  for (const uint64_t client : table.ClientsThatNeed(instance)) {
    Transaction& txn = *table.OfClient(client);
    FailAttempt(txn, leg,
                WithLeg(absl::UnavailableError(absl::StrCat(LegName(leg), " ", instance.id, " ",
                                                            cause, "; send the request again")),
                        LegName(leg), instance.id));
  }
  pairing.Forget(instance);
}

// ---- Clients ----

absl::StatusOr<Pair> RouterCore::State::Admit(const ClientRequested& event) {
  if (table.OfRequest(event.request_id) != nullptr && !PlantedBug(Bug::kRouterAcceptsDuplicateId)) {
    return absl::AlreadyExistsError(
        absl::StrCat("a request with the id ", event.request_id, " is running"));
  }
  if (table.size() >= limits.max_requests) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the router is serving ", table.size(), " requests, the most it takes; try again later"));
  }
  if (event.deadline_us <= now_us) {
    return absl::DeadlineExceededError("the deadline passed before the request was admitted");
  }
  if (membership.ReadyPairs().empty()) {
    return absl::UnavailableError(absl::StrCat(
        "no pair of a prefill chain and a decode service is ready: ", membership.WhatIsMissing()));
  }
  return pairing.Choose(membership.ReadyPairs(), event.prompt_tokens, event.max_tokens, nullptr);
}

void RouterCore::State::On(const ClientRequested& event) {
  absl::StatusOr<Pair> pair = Admit(event);
  if (!pair.ok()) {
    FinishClient refused;
    refused.client = event.client;
    refused.outcome = WithLeg(pair.status(), "router", "");
    return Act(std::move(refused));
  }
  Transaction txn;
  txn.client = event.client;
  txn.request_id = event.request_id;
  txn.prompt_tokens = event.prompt_tokens;
  txn.max_tokens = event.max_tokens;
  txn.deadline_us = event.deadline_us;
  txn.timer_us = event.deadline_us;
  Begin(table.Add(std::move(txn)), *std::move(pair));
}

void RouterCore::State::On(const ClientGone& event) {
  Transaction* txn = table.OfClient(event.client);
  if (txn == nullptr) return;
  CloseLegs(*txn, "the client went away");
  Remove(*txn);
}

void RouterCore::State::On(const AbortCalled& event) {
  Transaction* txn = table.OfRequest(event.request_id);
  if (txn == nullptr) {
    return Act(ReplyAbort{event.call, absl::NotFoundError(absl::StrCat(
                                          "no running request has the id ", event.request_id))});
  }
  Act(ReplyAbort{event.call, absl::OkStatus()});
  const bool complete = txn->phase == Phase::kSettling;
  CloseLegs(*txn, "aborted by the client");
  Finish(*txn, complete ? txn->answer : FinishReason::kAbort);
}

void RouterCore::State::On(const StopMatched& event) {
  Transaction* txn = table.OfClient(event.client);
  if (txn == nullptr || txn->phase != Phase::kDecoding) return;
  CloseDecode(*txn, "a stop string matched");
  Complete(*txn, FinishReason::kStop);
}

// ---- Legs ----

void RouterCore::State::On(const ReserveReplied& event) {
  Transaction* txn = table.OfAttempt(event.attempt_id);
  if (txn == nullptr || txn->phase != Phase::kReserving) return;
  if (!event.ticket.ok()) return FailAttempt(*txn, Leg::kDecode, event.ticket.status());
  const Ticket& ticket = *event.ticket;
  Attempt& attempt = txn->attempt;
  if (ticket.decode != attempt.pair.decode || ticket.generation == 0 ||
      ticket.prompt_tokens != txn->prompt_tokens) {
    return FailAttempt(*txn, Leg::kDecode,
                       absl::InternalError(absl::StrCat(
                           "the ticket of ", ticket.decode.id, " for ", ticket.prompt_tokens,
                           " tokens does not answer the ", "reservation of ", txn->prompt_tokens,
                           " tokens on ", attempt.pair.decode.id)));
  }
  table.SetPhase(*txn, Phase::kPrefilling);
  attempt.prefill_open = true;
  Act(OpenStream{attempt.id, attempt.pair.decode, ticket.generation, txn->deadline_us});
  Act(StartPrefill{attempt.id, txn->client, attempt.pair.chain.stage0, ticket, txn->deadline_us});
}

void RouterCore::State::On(const TokenReceived& event) {
  Transaction* txn = table.OfAttempt(event.attempt_id);
  if (txn == nullptr) return;
  if (txn->phase != Phase::kPrefilling && txn->phase != Phase::kDecoding) return;
  if (txn->tokens >= txn->max_tokens) {
    return FailAttempt(*txn, Leg::kDecode,
                       absl::InternalError(absl::StrCat(
                           txn->attempt.pair.decode.id,
                           " sent more than max_tokens = ", txn->max_tokens, " tokens")));
  }
  ++txn->tokens;
  if (txn->phase == Phase::kPrefilling) {
    table.SetPhase(*txn, Phase::kDecoding);
    EndPrefillWork(*txn);
  }
  Act(EmitToken{txn->client, event.token});
}

void RouterCore::State::On(const DecodeEnded& event) {
  Transaction* txn = table.OfAttempt(event.attempt_id);
  if (txn == nullptr) return;
  if (txn->phase != Phase::kPrefilling && txn->phase != Phase::kDecoding) return;
  if (!event.outcome.ok()) return FailAttempt(*txn, Leg::kDecode, event.outcome.status());
  txn->attempt.decode_open = false;
  Complete(*txn,
           *event.outcome == DecodeFinish::kStop ? FinishReason::kStop : FinishReason::kLength);
}

void RouterCore::State::On(const PrefillEnded& event) {
  Transaction* txn = table.OfAttempt(event.attempt_id);
  if (txn == nullptr || !txn->attempt.prefill_open) return;
  if (txn->phase == Phase::kSettling) {
    if (event.status.ok()) txn->attempt.prefill_open = false;
    CloseLegs(*txn, "the request is complete");
    return Finish(*txn, txn->answer);
  }
  if (!event.status.ok()) return FailAttempt(*txn, Leg::kPrefill, event.status);
  txn->attempt.prefill_open = false;
  EndPrefillWork(*txn);
}

void RouterCore::State::On(const Tick&) {
  const std::vector<Worker> lost = membership.Expire(now_us);
  totals.leases_expired_total += static_cast<int64_t>(lost.size());
  LoseWorkers(lost,
              absl::StrCat("has sent no heartbeat for ", limits.membership.lease_us / 1000, " ms"));
  while (Transaction* txn = table.Due(now_us)) TimeOut(*txn);
}

// ---- Transactions ----

void RouterCore::State::Begin(Transaction& txn, Pair pair) {
  ++txn.attempts;
  ++attempts_made;
  Attempt attempt;
  attempt.id = (limits.attempt_seed << 32) | (attempts_made & 0xffffffffU);
  attempt.pair = std::move(pair);
  attempt.decode_open = true;
  attempt.prefill_counted = true;
  pairing.Begin(attempt.pair, txn.prompt_tokens, txn.max_tokens);
  table.SetPhase(txn, Phase::kReserving);
  table.SetAttempt(txn, std::move(attempt));
  Act(Reserve{txn.attempt.id, txn.client, txn.attempt.pair.decode, txn.attempt.pair.chain.stages,
              txn.deadline_us});
}

// Ends both legs, the one that failed too: an error of a call does not prove that the far side has
// let go of the request (a lost answer leaves a reservation behind), and Abort is idempotent.
void RouterCore::State::FailAttempt(Transaction& txn, Leg reporter, absl::Status status) {
  if (txn.phase == Phase::kSettling) {  // The client has its whole answer.
    CloseLegs(txn, "the request is complete");
    return Finish(txn, txn.answer);
  }
  const Leg blamed = BlamedLeg(status, reporter);
  const Pair& pair = txn.attempt.pair;
  if (!LegOf(status).has_value()) {
    status = WithLeg(status, LegName(blamed),
                     blamed == Leg::kDecode ? pair.decode.id : pair.chain.stage0.id);
  }
  SuspectBlamed(pair, blamed, status);
  const std::string reason = absl::StrCat("the ", LegName(blamed), " leg failed");
  ClosePrefill(txn, reason);
  if (!(PlantedBug(Bug::kRouterKeepsOtherLeg) && blamed == Leg::kPrefill)) {
    CloseDecode(txn, reason);
  }
  if (Retry(txn, blamed, status)) return;
  Finish(txn, std::move(status));
}

bool RouterCore::State::Retry(Transaction& txn, Leg blamed, const absl::Status& status) {
  const bool client_has_tokens = txn.tokens > 0 && !PlantedBug(Bug::kRouterRetriesAfterFirstToken);
  if (client_has_tokens || txn.attempts >= limits.max_attempts || txn.deadline_us <= now_us ||
      SameEverywhere(status)) {
    return false;
  }
  const FailedPair failed = {txn.attempt.pair.chain.stages, txn.attempt.pair.decode, blamed};
  absl::StatusOr<Pair> other =
      pairing.Choose(membership.ReadyPairs(), txn.prompt_tokens, txn.max_tokens, &failed);
  if (!other.ok()) return false;  // The failure is reported as it was.
  EndPrefillWork(txn);
  pairing.EndDecode(txn.attempt.pair, txn.prompt_tokens, txn.max_tokens);
  ++(blamed == Leg::kPrefill ? totals.retries_prefill_total : totals.retries_decode_total);
  Begin(txn, *std::move(other));
  return true;
}

void RouterCore::State::SuspectBlamed(const Pair& pair, Leg blamed, const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return;
  InstanceRef suspect = blamed == Leg::kDecode ? pair.decode : pair.chain.stage0;
  if (blamed == Leg::kPrefill) {
    const auto named = InstanceOf(status);
    for (const KvWriter& stage : pair.chain.stages) {
      if (named == stage.instance.id) suspect = stage.instance;
    }
  }
  // One that has left is out of every pair already.
  if (membership.Find(suspect) != nullptr) pairing.Suspect(suspect);
}

void RouterCore::State::Complete(Transaction& txn, FinishReason reason) {
  if (!txn.attempt.prefill_open) return Finish(txn, reason);
  txn.answer = reason;
  table.SetPhase(txn, Phase::kSettling);
  table.SetTimer(txn, std::min(txn.deadline_us, now_us + limits.settle_us));
}

void RouterCore::State::TimeOut(Transaction& txn) {
  if (txn.phase == Phase::kSettling) {
    CloseLegs(txn, "the request is complete");
    return Finish(txn, txn.answer);
  }
  const Pair& pair = txn.attempt.pair;
  Leg leg = Leg::kDecode;
  std::string where;
  switch (txn.phase) {
    case Phase::kReserving:
      where = absl::StrCat("while waiting for KV pages on ", pair.decode.id);
      break;
    case Phase::kPrefilling:
      leg = Leg::kPrefill;
      where = absl::StrCat("during prefill in chain ", pair.chain.chain_id);
      break;
    default:
      where = absl::StrCat("after ", txn.tokens, " tokens from ", pair.decode.id);
  }
  absl::Status status =
      WithLeg(absl::DeadlineExceededError(absl::StrCat("the request's deadline passed ", where)),
              LegName(leg), leg == Leg::kDecode ? pair.decode.id : pair.chain.stage0.id);
  CloseLegs(txn, "the request's deadline passed");
  Finish(txn, std::move(status));
}

void RouterCore::State::CloseDecode(Transaction& txn, const std::string& reason) {
  if (!txn.attempt.decode_open) return;
  txn.attempt.decode_open = false;
  Act(AbortDecode{txn.attempt.id, txn.attempt.pair.decode, reason});
}

void RouterCore::State::ClosePrefill(Transaction& txn, const std::string& reason) {
  if (!txn.attempt.prefill_open) return;
  txn.attempt.prefill_open = false;
  Act(AbortPrefill{txn.attempt.id, txn.attempt.pair.chain.stage0, reason});
}

void RouterCore::State::CloseLegs(Transaction& txn, const std::string& reason) {
  ClosePrefill(txn, reason);
  CloseDecode(txn, reason);
}

void RouterCore::State::EndPrefillWork(Transaction& txn) {
  if (!std::exchange(txn.attempt.prefill_counted, false)) return;
  pairing.EndPrefill(txn.attempt.pair, txn.prompt_tokens);
}

void RouterCore::State::Finish(Transaction& txn, absl::StatusOr<FinishReason> outcome) {
  FinishClient finish;
  finish.client = txn.client;
  finish.outcome = std::move(outcome);
  finish.attempts = txn.attempts;
  finish.chain_id = txn.attempt.pair.chain.chain_id;
  finish.decode_instance = txn.attempt.pair.decode.id;
  Remove(txn);
  Act(std::move(finish));
}

void RouterCore::State::Remove(Transaction& txn) {
  EndPrefillWork(txn);
  pairing.EndDecode(txn.attempt.pair, txn.prompt_tokens, txn.max_tokens);
  table.Remove(txn.client);
}

// ---- RouterCore ----

RouterCore::RouterCore(RouterLimits limits) : state_(std::make_unique<State>(limits)) {}
RouterCore::~RouterCore() = default;

void RouterCore::Handle(const Event& event, int64_t now_us, std::vector<Action>& actions) {
  state_->now_us = now_us;
  state_->actions = &actions;
  std::visit([this](const auto& e) { state_->On(e); }, event);
  state_->actions = nullptr;
}

int64_t RouterCore::NextDeadlineUs() const {
  return std::min(state_->table.NextTimerUs(), state_->membership.NextDeadlineUs());
}

const Membership& RouterCore::membership() const { return state_->membership; }

RouterLoad RouterCore::load() const {
  RouterLoad load = state_->totals;
  const TransactionTable& table = state_->table;
  load.in_flight = table.size();
  load.reserving = table.CountOf(Phase::kReserving);
  load.prefilling = table.CountOf(Phase::kPrefilling);
  load.decoding = table.CountOf(Phase::kDecoding) + table.CountOf(Phase::kSettling);
  return load;
}

absl::Status RouterCore::CheckInvariants() const { return state_->table.CheckInvariants(); }

bool RouterCore::AtRest() const { return state_->table.empty() && state_->pairing.AtRest(); }

}  // namespace baton::router
