#include "services/router/core/leg_calls.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/coverage.h"
#include "common/base/status.h"

namespace baton::router {
namespace {

// A call's own deadline is only a backstop behind the request's: it must not win the race, since
// the core's status says more.
constexpr int64_t kBackstopUs = 1'000'000;
// Workers' own deadlines are behind an abort that is lost.
constexpr int64_t kAbortTimeoutMs = 2'000;

const char* CallName(LegCall call) {
  switch (call) {
    case LegCall::kReserve:
      return "Decode.Reserve";
    case LegCall::kStream:
      return "Decode.Generate";
    case LegCall::kGenerate:
      return "Prefill.Generate";
    case LegCall::kStart:
      break;
  }
  return "Prefill.Start";
}

Role RoleOf(LegCall call) {
  const bool of_chain = call == LegCall::kStart || call == LegCall::kGenerate;
  return of_chain ? Role::kPrefill : Role::kDecode;
}

// Rounded up: the router's own deadline is to be the first, and a worker that ends a request before
// it would fail one that has time.
int64_t RemainingMs(int64_t deadline_us, int64_t now_us) {
  if (deadline_us == kNeverUs) return std::numeric_limits<int32_t>::max();
  return std::max<int64_t>(1, (deadline_us - now_us + 999) / 1000);
}

std::string Where(LegCall call, const InstanceRef& worker) {
  return absl::StrCat(RoleName(RoleOf(call)), " ", worker.id);
}

// A failed call's status: the worker's own words, or what can be said from here.
absl::Status Explain(const absl::Status& status, LegCall call, const InstanceRef& worker,
                     const std::string& address) {
  if (LegOf(status).has_value()) return status;
  const std::string where = Where(call, worker);
  absl::Status explained;
  if (absl::IsUnavailable(status)) {
    explained = absl::UnavailableError(
        absl::StrCat(where, " (", address, ") could not be reached or went away during ",
                     CallName(call), ": ", status.message(), "; send the request again"));
  } else if (absl::IsCancelled(status)) {
    // Not the client's wish: of what the router cancels nothing is told.
    Covered<"legs: a worker gives a call up">();
    explained = absl::UnavailableError(
        absl::StrCat(where, " gave ", CallName(call), " up: ", status.message()));
  } else {
    explained = Annotate(status, where);
  }
  return WithLeg(std::move(explained), RoleName(RoleOf(call)), worker.id);
}

absl::Status ProtocolError(const std::string& message, LegCall call, const InstanceRef& worker) {
  Covered<"legs: an answer breaks the protocol">();
  return WithLeg(absl::InternalError(absl::StrCat(Where(call, worker), " ", message)),
                 RoleName(RoleOf(call)), worker.id);
}

bool AreTheSame(const std::vector<SampledToken>& told, std::span<const int32_t> expected) {
  const auto same = [](const SampledToken& token, int32_t id) { return token.token == id; };
  return std::equal(told.begin(), told.end(), expected.begin(), expected.end(), same);
}

Event FailureOf(uint64_t attempt_id, LegCall call, absl::Status status) {
  switch (call) {
    case LegCall::kReserve:
      return ReserveReplied{attempt_id, std::move(status)};
    case LegCall::kStream:
    case LegCall::kGenerate:
      return DecodeEnded{attempt_id, std::move(status)};
    case LegCall::kStart:
      break;
  }
  return PrefillEnded{attempt_id, std::move(status), {}};
}

}  // namespace

// ---- What RouterCore wants ----

std::optional<BeginCall> LegCalls::Begin(uint64_t attempt_id, Role role, LegCall call,
                                         const InstanceRef& worker, const std::string& address,
                                         int64_t deadline_us, int64_t now_us,
                                         std::vector<LegAction>& actions) {
  const auto found = attempts_.find(attempt_id);
  if (found == attempts_.end()) return std::nullopt;  // Forgotten.
  if (address.empty()) {
    const absl::Status gone =
        absl::UnavailableError(absl::StrCat(Where(call, worker), " has left the cluster"));
    actions.emplace_back(
        TellRouter{FailureOf(attempt_id, call, WithLeg(gone, RoleName(role), worker.id))});
    return std::nullopt;
  }
  Leg& leg = role == Role::kDecode ? found->second.decode : found->second.prefill;
  leg = {worker, address, call};
  const int64_t give_up_us = deadline_us == kNeverUs ? kNeverUs : deadline_us + kBackstopUs;
  return BeginCall{attempt_id,
                   call,
                   worker,
                   address,
                   RemainingMs(deadline_us, now_us),
                   std::max(give_up_us, now_us)};
}

void LegCalls::Remember(uint64_t call_id, uint64_t attempt_id) {
  Forget(call_id);
  attempt_of_call_[call_id] = attempt_id;
  attempts_[attempt_id].call_id = call_id;
}

std::optional<BeginCall> LegCalls::Open(const Reserve& action, const std::string& address,
                                        int64_t now_us, std::vector<LegAction>& actions) {
  Remember(action.call_id, action.attempt_id);
  return Begin(action.attempt_id, Role::kDecode, LegCall::kReserve, action.decode, address,
               action.deadline_us, now_us, actions);
}

std::optional<BeginCall> LegCalls::Open(const OpenStream& action, const std::string& address,
                                        int64_t now_us, std::vector<LegAction>& actions) {
  return Begin(action.attempt_id, Role::kDecode, LegCall::kStream, action.decode, address,
               action.deadline_us, now_us, actions);
}

std::optional<BeginCall> LegCalls::Open(const StartPrefill& action, const std::string& address,
                                        int64_t now_us, std::vector<LegAction>& actions) {
  return Begin(action.attempt_id, Role::kPrefill, LegCall::kStart, action.stage0, address,
               action.deadline_us, now_us, actions);
}

std::optional<BeginCall> LegCalls::Open(const StartGeneration& action, const std::string& address,
                                        int64_t now_us, std::vector<LegAction>& actions) {
  Remember(action.call_id, action.attempt_id);
  return Begin(action.attempt_id, Role::kPrefill, LegCall::kGenerate, action.stage0, address,
               action.deadline_us, now_us, actions);
}

void LegCalls::Abort(uint64_t attempt_id, Role role, const std::string& reason, Leg& leg,
                     std::vector<LegAction>& actions) {
  if (leg.worker.id.empty()) return;
  const Leg aborted = std::exchange(leg, {});
  if (aborted.running.has_value()) actions.emplace_back(CancelCall{attempt_id, *aborted.running});
  actions.emplace_back(
      SendAbort{attempt_id, role, aborted.worker, aborted.address, reason, kAbortTimeoutMs});
}

void LegCalls::Abort(const AbortDecode& action, std::vector<LegAction>& actions) {
  const auto found = attempts_.find(action.attempt_id);
  if (found == attempts_.end()) return;
  Abort(action.attempt_id, Role::kDecode, action.reason, found->second.decode, actions);
}

void LegCalls::Abort(const AbortPrefill& action, std::vector<LegAction>& actions) {
  const auto found = attempts_.find(action.attempt_id);
  if (found == attempts_.end()) return;
  Abort(action.attempt_id, Role::kPrefill, action.reason, found->second.prefill, actions);
}

void LegCalls::Forget(uint64_t call_id) {
  const auto found = attempt_of_call_.find(call_id);
  if (found == attempt_of_call_.end()) return;
  attempts_.erase(found->second);
  attempt_of_call_.erase(found);
}

// ---- What the transport says ----

LegCalls::Leg* LegCalls::Waiting(uint64_t attempt_id, LegCall call, bool ends) {
  const auto found = attempts_.find(attempt_id);
  if (found == attempts_.end()) return nullptr;
  Leg& leg = RoleOf(call) == Role::kDecode ? found->second.decode : found->second.prefill;
  if (leg.running != call) return nullptr;
  const bool waiting = !leg.told;
  if (ends) leg.running.reset();
  return waiting ? &leg : nullptr;
}

void LegCalls::ReserveEnded(uint64_t attempt_id, const absl::Status& status,
                            const absl::StatusOr<Ticket>& ticket, std::vector<LegAction>& actions) {
  constexpr LegCall kCall = LegCall::kReserve;
  const Leg* leg = Waiting(attempt_id, kCall, /*ends=*/true);
  if (leg == nullptr) return;
  absl::StatusOr<Ticket> answer = ticket;
  if (!status.ok()) {
    Covered<"legs: a reservation fails">();
    answer = Explain(status, kCall, leg->worker, leg->address);
  } else if (!ticket.ok()) {
    answer = ProtocolError(absl::StrCat("answered with a bad ticket: ", ticket.status().message()),
                           kCall, leg->worker);
  }
  actions.emplace_back(TellRouter{ReserveReplied{attempt_id, std::move(answer)}});
}

LegCall LegCalls::StreamOf(uint64_t attempt_id) const {
  const auto found = attempts_.find(attempt_id);
  const bool by_chain =
      found != attempts_.end() && found->second.prefill.running == LegCall::kGenerate;
  return by_chain ? LegCall::kGenerate : LegCall::kStream;
}

void LegCalls::PromptTold(uint64_t attempt_id, const std::vector<SampledToken>& prompt_tokens,
                          std::span<const int32_t> expected, std::vector<LegAction>& actions) {
  constexpr LegCall kCall = LegCall::kGenerate;
  Leg* leg = Waiting(attempt_id, kCall, /*ends=*/false);
  if (leg == nullptr) return;
  const char* wrong = nullptr;
  if (std::exchange(leg->prompt_told, true)) wrong = "told of the prompt twice";
  if (!expected.empty() && !AreTheSame(prompt_tokens, expected)) {
    wrong = "told of other tokens than the prompt's";
  }
  if (wrong != nullptr) {
    leg->told = true;
    actions.emplace_back(
        TellRouter{DecodeEnded{attempt_id, ProtocolError(wrong, kCall, leg->worker)}});
    return;
  }
  actions.emplace_back(TellRouter{PrefillEnded{attempt_id, absl::OkStatus(), prompt_tokens}});
}

void LegCalls::StreamSaid(uint64_t attempt_id, const StreamMessage& message,
                          std::vector<LegAction>& actions) {
  const LegCall call = StreamOf(attempt_id);
  Leg* leg = Waiting(attempt_id, call, /*ends=*/false);
  if (leg == nullptr) return;
  const auto end = [&](absl::StatusOr<FinishReason> outcome) {
    leg->told = true;
    actions.emplace_back(TellRouter{DecodeEnded{attempt_id, std::move(outcome)}});
  };
  if (call == LegCall::kGenerate && !leg->prompt_told) {
    return end(ProtocolError("did not begin with what it knows of the prompt", call, leg->worker));
  }
  if (const auto* token = std::get_if<SampledToken>(&message)) {
    if (token->token >= 0 && token->token < vocab_size_) {
      actions.emplace_back(TellRouter{TokenReceived{attempt_id, *token}});
      return;
    }
    return end(ProtocolError(
        absl::StrCat("sent the token id ", token->token, ", which is outside the vocabulary"), call,
        leg->worker));
  }
  const auto* finished = std::get_if<StreamFinished>(&message);
  if (finished == nullptr) {
    return end(ProtocolError("sent a message that is neither token nor end", call, leg->worker));
  }
  if (!finished->reason.has_value()) {
    return end(ProtocolError("finished for no reason that the router knows", call, leg->worker));
  }
  end(*finished->reason);
}

void LegCalls::StreamEnded(uint64_t attempt_id, const absl::Status& status,
                           std::vector<LegAction>& actions) {
  const LegCall call = StreamOf(attempt_id);
  const Leg* leg = Waiting(attempt_id, call, /*ends=*/true);
  if (leg == nullptr) return;
  Covered<"legs: a stream breaks">();
  actions.emplace_back(TellRouter{DecodeEnded{
      attempt_id, status.ok()
                      ? ProtocolError("ended its stream without Finished", call, leg->worker)
                      : Explain(status, call, leg->worker, leg->address)}});
}

void LegCalls::StartEnded(uint64_t attempt_id, const absl::Status& status,
                          const std::vector<SampledToken>& prompt_tokens,
                          std::span<const int32_t> expected, std::vector<LegAction>& actions) {
  constexpr LegCall kCall = LegCall::kStart;
  const Leg* leg = Waiting(attempt_id, kCall, /*ends=*/true);
  if (leg == nullptr) return;
  const bool right = expected.empty() || AreTheSame(prompt_tokens, expected);
  PrefillEnded ended{attempt_id, absl::OkStatus(), {}};
  if (!status.ok()) {
    Covered<"legs: a start fails">();
    ended.status = Explain(status, kCall, leg->worker, leg->address);
  } else if (!right) {
    ended.status = ProtocolError("told of other tokens than the prompt's", kCall, leg->worker);
  } else {
    ended.prompt_tokens = prompt_tokens;
  }
  actions.emplace_back(TellRouter{std::move(ended)});
}

}  // namespace baton::router
