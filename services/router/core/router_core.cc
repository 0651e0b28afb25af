#include "services/router/core/router_core.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "services/router/core/router_state.h"

namespace baton::router {
namespace {

// Whether it is for what was asked of whom.
absl::Status CheckTicket(const Ticket& ticket, const Pair& pair, int prompt_tokens) {
  if (ticket.decode != pair.decode || ticket.generation == 0 ||
      ticket.prompt_tokens != prompt_tokens) {
    return absl::InternalError(absl::StrCat("the ticket of ", ticket.decode.id, " for ",
                                            ticket.prompt_tokens, " tokens does not answer the ",
                                            "reservation of ", prompt_tokens, " tokens on ",
                                            pair.decode.id));
  }
  if (ticket.followers == pair.followers) return absl::OkStatus();
  const auto names = [](const std::vector<InstanceRef>& ranks) {
    return absl::StrJoin(ranks, ", ", [](std::string* text, const InstanceRef& rank) {
      absl::StrAppend(text, rank.id, " (incarnation ", absl::Hex(rank.incarnation), ")");
    });
  };
  // One that was started again is another process than the pair's.
  return absl::InternalError(absl::StrCat("the ticket of ", ticket.decode.id, " names as ranks [",
                                          names(ticket.followers), "], the router knows [",
                                          names(pair.followers), "]"));
}

}  // namespace

// ---- The cluster ----

void RouterCore::State::LoseWorkers(const std::vector<Worker>& lost, const std::string& cause,
                                    bool left) {
  for (const Worker& worker : lost) LoseWorker(worker, cause, left);
}

void RouterCore::State::LoseWorker(const Worker& worker, const std::string& cause, bool left) {
  const InstanceRef& instance = worker.info.instance;
  EndLeaseOf(instance);
  const Role leg = worker.info.role == Role::kPrefill ? Role::kPrefill : Role::kDecode;
  for (const uint64_t call_id : table.CallsThatNeed(instance)) {
    Transaction& txn = *table.OfCall(call_id);
    const absl::Status status = absl::UnavailableError(
        absl::StrCat(RoleName(leg), " ", instance.id, " ", cause, "; send the request again"));
    FailAttempt(txn, leg,
                WithLeg(left ? EndedByDrain(status) : status, RoleName(leg), instance.id));
  }
  pairing.Forget(instance);
}

// ---- Clients ----

absl::Status RouterCore::State::CheckAdmissible(const CallSubmitted& event) {
  if (absl::Status status = RefuseToBegin(); !status.ok()) return status;
  if (table.OfRequest(event.request_id) != nullptr) {
    Covered<"router: an id is in use">();
    return absl::AlreadyExistsError(
        absl::StrCat("a request with the id ", event.request_id, " is running"));
  }
  if (table.size() >= limits.max_requests && !GivesWayTo(event.tenant).has_value()) {
    Covered<"router: too many requests">();
    return Overloaded(absl::ResourceExhaustedError(absl::StrCat(
        "the router is serving ", table.size(), " requests, the most it takes; try again later")));
  }
  if (event.deadline_us <= now_us) {
    return absl::DeadlineExceededError("the deadline passed before the request was admitted");
  }
  return absl::OkStatus();
}

void RouterCore::State::RefuseCall(const CallSubmitted& event, const absl::Status& status) {
  FinishCall refused;
  refused.call_id = event.call_id;
  refused.outcome = WithLeg(status, "router", "");
  Emit(std::move(refused));
}

void RouterCore::State::On(const CallSubmitted& event) {
  if (absl::Status status = CheckAdmissible(event); !status.ok()) {
    return RefuseCall(event, status);
  }
  absl::StatusOr<Choice> choice = Choice();
  bool wait = !membership.HasReadyPair();
  if (!wait) {
    const Ask ask = {event.prompt_tokens, event.max_tokens, event.clip, event.prefix,
                     event.routing_key};
    choice = pairing.Choose(membership.roster(), ask, nullptr);
    wait = IsOverloaded(choice.status()) || (choice.ok() && !waiting.empty());
    if (!choice.ok() && !wait) return RefuseCall(event, choice.status());
  }
  if (absl::Status status = wait ? MayQueue(event) : absl::OkStatus(); !status.ok()) {
    return RefuseCall(event, status);
  }
  // Behind all other reasons to refuse it, so that none costs its tenant anything.
  const int64_t charged = event.prompt_tokens + (event.clip ? 0 : event.max_tokens);
  if (absl::Status status = rates.Take(event.tenant, charged, now_us); !status.ok()) {
    return RefuseCall(event, status);
  }
  const bool crowded = table.size() >= limits.max_requests;
  if (crowded || (wait && table.CountOf(Phase::kWaiting) >= limits.max_waiting)) {
    GiveWay(*GivesWayTo(event.tenant));
  }
  Transaction txn;
  txn.tenant = event.tenant;
  txn.charged_tokens = charged;
  txn.call_id = event.call_id;
  txn.turn = {now_us - event.priority * kPriorityStepUs, ++admitted};
  txn.request_id = event.request_id;
  txn.prompt_tokens = event.prompt_tokens;
  txn.max_tokens = txn.asked_tokens = event.max_tokens;
  txn.clip = event.clip;
  txn.prefix = event.prefix;
  txn.routing_key = event.routing_key;
  txn.deadline_us = event.deadline_us;
  txn.prompt_logprobs = event.prompt_logprobs;
  Transaction& added = table.Add(std::move(txn));
  waiting.Come(event.tenant);
  if (wait) return Wait(added);
  Begin(added, *std::move(choice));
}

void RouterCore::State::On(const ClientGone& event) {
  Transaction* txn = table.OfCall(event.call_id);
  if (txn == nullptr) return;
  Covered<"router: a client leaves">();
  CloseLegs(*txn, "the client went away");
  Remove(*txn);
}

void RouterCore::State::On(const AbortCalled& event) {
  Transaction* txn = table.OfRequest(event.request_id);
  if (txn == nullptr) {
    return Emit(ReplyAbort{event.rpc_id, absl::NotFoundError(absl::StrCat(
                                             "no running request has the id ", event.request_id))});
  }
  Emit(ReplyAbort{event.rpc_id, absl::OkStatus()});
  Covered<"router: a request is aborted">();
  const bool complete = txn->Complete();
  CloseLegs(*txn, "aborted by the client");
  Finish(*txn, complete ? txn->answer : FinishReason::kAbort);
}

void RouterCore::State::On(const CachesFlushed&) { pairing.DropPredictions(); }

void RouterCore::State::On(const StopMatched& event) {
  Transaction* txn = table.OfCall(event.call_id);
  if (txn == nullptr || txn->tokens == 0 || txn->phase == Phase::kSettling) return;
  Covered<"router: a stop string matches">();
  if (txn->phase != Phase::kDecoding) {  // It was about to go on elsewhere.
    CloseLegs(*txn, "a stop string matched");
    return Finish(*txn, FinishReason::kStop);
  }
  CloseDecode(*txn, "a stop string matched");
  Complete(*txn, FinishReason::kStop);
}

// ---- Legs ----

void RouterCore::State::On(const ReserveReplied& event) {
  Transaction* txn = table.OfAttempt(event.attempt_id);
  if (txn == nullptr || txn->phase != Phase::kReserving) return;
  if (!event.ticket.ok()) return FailAttempt(*txn, Role::kDecode, event.ticket.status());
  const Ticket& ticket = *event.ticket;
  Attempt& attempt = txn->attempt;
  if (absl::Status wrong = CheckTicket(ticket, attempt.pair, txn->read_tokens()); !wrong.ok()) {
    return FailAttempt(*txn, Role::kDecode, std::move(wrong));
  }
  NoteGrant(*txn);
  attempt.prefill_us = now_us;
  table.SetPhase(*txn, Phase::kPrefilling);
  attempt.prefill_open = true;
  Emit(OpenStream{attempt.id, attempt.pair.decode, ticket.generation, txn->deadline_us});
  Emit(StartPrefill{attempt.id, txn->call_id, attempt.pair.chain.stage0, ticket, txn->deadline_us,
                    attempt.drawn_tokens, GiveTurn(*txn)});
}

void RouterCore::State::On(const TokenReceived& event) {
  Transaction* txn = table.OfAttempt(event.attempt_id);
  if (txn == nullptr) return;
  if (txn->phase != Phase::kPrefilling && txn->phase != Phase::kDecoding) return;
  if (txn->attempt.redraws) return Redrawn(*txn, event.token.token);
  if (txn->tokens + static_cast<int>(txn->held.size()) >= txn->max_tokens) {
    return FailAttempt(*txn, Role::kDecode,
                       absl::InternalError(absl::StrCat(
                           txn->attempt.pair.decode.id,
                           " sent more than max_tokens = ", txn->max_tokens, " tokens")));
  }
  if (txn->AwaitsPrompt()) {
    txn->held.push_back(event.token);
  } else {
    TellToken(*txn, event.token);
  }
}

void RouterCore::State::On(const DecodeEnded& event) {
  Transaction* txn = table.OfAttempt(event.attempt_id);
  if (txn == nullptr) return;
  if (txn->phase != Phase::kPrefilling && txn->phase != Phase::kDecoding) return;
  if (!event.outcome.ok()) return FailAttempt(*txn, Role::kDecode, event.outcome.status());
  txn->attempt.decode_open = false;
  Complete(*txn,
           *event.outcome == FinishReason::kStop ? FinishReason::kStop : FinishReason::kLength);
}

void RouterCore::State::On(const PrefillEnded& event) {
  Transaction* txn = table.OfAttempt(event.attempt_id);
  if (txn == nullptr || !txn->attempt.prefill_open) return;
  absl::Status status = event.status;
  if (status.ok() && txn->AwaitsPrompt() &&
      event.prompt_tokens.size() + 1 != static_cast<size_t>(txn->prompt_tokens)) {
    status = absl::InternalError(absl::StrCat("the chain told of ", event.prompt_tokens.size(),
                                              " tokens of a prompt of ", txn->prompt_tokens));
  }
  if (!status.ok()) return FailAttempt(*txn, Role::kPrefill, std::move(status));
  Covered<"router: a chain is through with a prompt">();
  txn->attempt.prefill_open = false;
  LearnPrompt(*txn, event.cached_tokens);
  EndPrefillWork(*txn);
  if (txn->AwaitsPrompt()) TellPrompt(*txn, event.prompt_tokens);
  if (txn->phase == Phase::kSettling) Finish(*txn, txn->answer);
}

void RouterCore::State::On(const Tick&) {
  pause.Begin(now_us);
  const std::vector<Worker> lost = membership.Expire(now_us);
  totals.leases_expired_total += static_cast<int64_t>(lost.size());
  Covered<"router: leases are looked through">();
  LoseWorkers(lost,
              absl::StrCat("has sent no heartbeat for ", limits.membership.lease_us / 1000, " ms"));
  while (Transaction* txn = table.Due(now_us)) TimeOut(*txn);
}

// ---- RouterCore ----

RouterCore::RouterCore(RouterLimits limits) : state_(std::make_unique<State>(limits)) {}
RouterCore::~RouterCore() = default;

void RouterCore::Handle(const Event& event, int64_t now_us, std::vector<Action>& actions) {
  state_->now_us = now_us;
  state_->actions = &actions;
  if (state_->pause.NextUs() == kNeverUs) state_->pause.Begin(now_us);
  const uint64_t changes = state_->pairing.changes();
  const uint64_t served = state_->served;
  const std::optional<uint64_t> next = state_->waiting.Next();
  state_->pairing.Advance(now_us);
  state_->NoticePause();
  std::visit([this](const auto& e) { state_->On(e); }, event);
  state_->EndDrain();
  state_->TellMembers();
  // By far the most events are tokens; few of them make room, end a probation, or have another
  // tenant be next.
  if (changes != state_->pairing.changes() || served != state_->served ||
      next != state_->waiting.Next() || !std::holds_alternative<TokenReceived>(event)) {
    state_->ServeWaiting();
  }
  state_->actions = nullptr;
}

int64_t RouterCore::NextDeadlineUs() const {
  const State& state = *state_;
  int64_t next_us = std::min({state.table.NextTimerUs(), state.membership.NextDeadlineUs(),
                              state.NextDrainUs(), state.pause.NextUs()});
  if (!state.waiting.empty()) {
    const int64_t awaited_us =
        state.wait_for_room ? state.pairing.NextUs() : state.PairAwaitedUntilUs(state.now_us);
    next_us = std::min(next_us, awaited_us);
  }
  return next_us;
}

Outlook RouterCore::outlook(int64_t now_us) const {
  const State& state = *state_;
  if (state.membership.HasReadyPair()) return Outlook::kServed;
  return state.ExpectsPair(now_us) ? Outlook::kWaits : Outlook::kRefused;
}

FinishCall RouterCore::EndOf(uint64_t call_id, absl::Status error) const {
  const Transaction* txn = state_->table.OfCall(call_id);
  if (txn != nullptr) return State::EndOf(*txn, std::move(error));
  FinishCall finish;
  finish.call_id = call_id;
  finish.outcome = std::move(error);
  return finish;
}

const Membership& RouterCore::membership() const { return state_->membership; }

RouterLoad RouterCore::load() const {
  RouterLoad load = state_->totals;
  load.limited = state_->rates.refused();
  const TransactionTable& table = state_->table;
  load.accounting_errors_total = state_->pairing.mended_total();
  load.in_flight = table.size();
  load.waiting = table.CountOf(Phase::kWaiting);
  load.reserving = table.CountOf(Phase::kReserving);
  load.prefilling = table.CountOf(Phase::kPrefilling);
  load.decoding = table.CountOf(Phase::kDecoding) + table.CountOf(Phase::kSettling);
  return load;
}

}  // namespace baton::router
