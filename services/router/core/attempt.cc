// One attempt of a request on a pair, from its reservation to its end or its second try.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "common/types/instance.h"
#include "services/router/core/router_state.h"

namespace baton::router {
namespace {

constexpr int kMostHandBacks = 64;

// Which leg a failure is blamed on: the one that the status names, since decode may report that a
// stage fell silent, or a stage that decode did; else the one that reported it. A colocated chain
// is a prefill leg, whatever fails.
Role BlamedLeg(const Pair& pair, const absl::Status& status, Role reporter) {
  if (pair.colocated()) return Role::kPrefill;
  const auto named = LegOf(status);
  if (named == RoleName(Role::kPrefill)) return Role::kPrefill;
  if (named == RoleName(Role::kDecode)) return Role::kDecode;
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

void RouterCore::State::CountChoice(ChoiceKind kind) {
  PredictionCounts& counts = totals.predictions;
  switch (kind) {
    case ChoiceKind::kUncached:
      ++counts.uncached_total;
      return;
    case ChoiceKind::kCached:
      ++counts.cached_total;
      return;
    case ChoiceKind::kPassedOver:
      ++counts.passed_over_total;
      return;
  }
}

void RouterCore::State::Begin(Transaction& txn, Choice choice) {
  if (txn.attempts == 0) budget.Begin(now_us);
  ++txn.attempts;
  ++attempts_made;
  Attempt attempt;
  attempt.id = (limits.incarnation << 32) | (attempts_made & 0xffffffffU);
  attempt.pair = std::move(choice.pair);
  CountChoice(choice.kind);
  if (choice.considered != nullptr) {
    txn.decisions.push_back({txn.attempts, std::move(choice.considered), now_us});
  }
  txn.max_tokens = txn.asked_tokens;
  if (txn.clip) {
    const int64_t room = OutputRoom(attempt.pair, txn.prompt_tokens);
    txn.max_tokens = static_cast<int>(std::min<int64_t>(txn.asked_tokens, room));
  }
  attempt.decode_open = true;
  attempt.prefill_counted = attempt.decode_counted = true;
  attempt.begun_us = attempt.prefill_us = now_us;
  attempt.drawn_tokens = txn.drawn_tokens();
  attempt.redraws = txn.tokens > 0;
  txn.resumes += attempt.redraws ? 1 : 0;
  attempt.predicted = pairing.Note(attempt.pair, txn.ask());
  attempt.prefill_open = attempt.pair.colocated();
  txn.held.clear();
  table.SetPhase(txn, attempt.pair.colocated() ? Phase::kPrefilling : Phase::kReserving);
  table.SetTimer(txn, txn.deadline_us);
  table.SetAttempt(txn, std::move(attempt));
  const Pair& begun = txn.attempt.pair;
  const int cached_tokens = txn.attempt.predicted.cached_tokens;
  txn.attempt.ungranted = pairing.Begin(begun, txn.read_tokens(), txn.new_tokens(), cached_tokens);
  // What is computed again later is not the tenant's doing.
  if (txn.attempts == 1) {
    txn.tag = waiting.Begin(txn.tenant, txn.prompt_tokens - cached_tokens);
    txn.has_begun = true;
  }
  if (begun.colocated()) {
    return Emit(StartGeneration{txn.attempt.id, txn.call_id, begun.chain.stage0, begun.chain.stages,
                                txn.deadline_us, txn.max_tokens, txn.attempt.drawn_tokens,
                                GiveTurn(txn)});
  }
  Emit(Reserve{txn.attempt.id, txn.call_id, begun.decode, begun.writers, txn.deadline_us,
               txn.max_tokens, txn.attempt.drawn_tokens});
}

// Ends both legs, the one that failed too: an error of a call does not prove that the far side has
// let go of the request (a lost answer leaves a reservation behind), and Abort is idempotent.
void RouterCore::State::FailAttempt(Transaction& txn, Role reporter, absl::Status status) {
  if (txn.Complete()) {
    CloseLegs(txn, "the request is complete");
    return Finish(txn, txn.answer);
  }
  const Pair& pair = txn.attempt.pair;
  const Role blamed = BlamedLeg(pair, status, reporter);
  if (!LegOf(status).has_value()) {
    status = WithLeg(status, RoleName(blamed),
                     blamed == Role::kDecode ? pair.decode.id : pair.chain.stage0.id);
  }
  SuspectBlamed(pair, blamed, status);
  Covered<"router: an attempt fails">();
  if (!txn.decisions.empty()) txn.decisions.back().failure = std::string(status.message());
  const bool full = IsOverloaded(status);
  const bool had_drawn = txn.phase == Phase::kDecoding;
  const std::string reason =
      absl::StrCat("the ", RoleName(blamed), " leg ", full ? "was refused" : "failed");
  CloseLegs(txn, reason);
  if (full && !had_drawn) {
    if (TryRefusedAgain(txn, blamed, status)) return;
    return Finish(txn,
                  WithLeg(TellOverload(status), RoleName(blamed), InstanceOf(status).value_or("")));
  }
  EndWork(txn);  // Its room is free for the next attempt.
  if (Retry(txn, blamed, status)) return;
  if (IsEndedByDrain(status)) ++totals.drain.worker_total;
  Finish(txn, std::move(status));
}

bool RouterCore::State::MayBeginAgain(const Transaction& txn, bool handed_back) const {
  const int failed_attempts = txn.attempts - txn.handed_back - txn.refused;
  return handed_back || failed_attempts < limits.max_attempts;
}

// The client's text goes on where it stands, so that what another pair draws must be what this one
// would have drawn: Redrawn checks it.
bool RouterCore::State::MayResume(const Transaction& txn, bool handed_back) const {
  if (handed_back) return limits.max_resumes > 0;
  return txn.failed_resumes < limits.max_resumes;
}

bool RouterCore::State::Retry(Transaction& txn, Role blamed, const absl::Status& status) {
  // A worker that drains, or can't be connected to, has not failed, and is in no such pair any
  // more; a bound there is all the same.
  const bool by_drain = IsEndedByDrain(status);
  const bool handed_back = (by_drain || IsUnconnected(status)) && txn.handed_back < kMostHandBacks;
  if (!(txn.tokens > 0 ? MayResume(txn, handed_back) : MayBeginAgain(txn, handed_back)) ||
      txn.deadline_us <= now_us || SameEverywhere(status)) {
    return false;
  }
  FailedPair failed = {txn.attempt.pair, blamed};
  absl::StatusOr<Choice> other = pairing.Choose(membership.roster(), txn.ask(), &failed);
  // Without another pair the failure is reported as it was, unless the others have no room, or none
  // is ready at all and one is expected: then what failed is what is missing.
  const bool no_room = IsOverloaded(other.status());
  const bool no_pair = !membership.HasReadyPair() && ExpectsPair(now_us);
  if (!other.ok() && !(MayWaitAgain() && (no_room || no_pair))) return false;
  // Who drains, is dead or does not answer is in no pair any more: what it had must go elsewhere
  // and cannot come back to it.
  if (!handed_back && !absl::IsUnavailable(status) && !TakeRetry()) return false;
  Covered<"router: an attempt is made again">();
  txn.handed_back += handed_back ? 1 : 0;
  txn.failed_resumes += txn.tokens > 0 && !handed_back ? 1 : 0;
  RetryCounts& counts = totals.RetriesOf(blamed);
  ++(handed_back && by_drain ? counts.drain_total : counts.failure_total);
  txn.failed = std::move(failed);
  txn.failure = status;
  if (other.ok()) {
    Begin(txn, *std::move(other));
  } else {
    Covered<"router: a failed attempt waits for a pair">();
    Wait(txn);
  }
  return true;
}

void RouterCore::State::SuspectBlamed(const Pair& pair, Role blamed, const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return;
  // Either may serve others: another pair is tried, and no worker is at fault.
  if (IsUnconnected(status)) return membership.CouldNotConnect(pair, now_us);
  const bool by_decode = blamed == Role::kDecode;
  InstanceRef suspect = by_decode ? pair.decode : pair.chain.stage0;
  const auto named = InstanceOf(status);
  const auto consider = [&](bool of_leg, const InstanceRef& instance) {
    if (of_leg && named == instance.id) suspect = instance;
  };
  for (const KvWriter& stage : pair.chain.stages) consider(!by_decode, stage.instance);
  for (const InstanceRef& follower : pair.followers) consider(by_decode, follower);
  Suspect(suspect);
}

void RouterCore::State::TellPrompt(Transaction& txn, const std::vector<SampledToken>& tokens) {
  Covered<"router: a client hears of its prompt">();
  txn.prompt_told = true;
  Emit(DeliverPrompt{txn.call_id, tokens});
  for (const SampledToken& token : std::exchange(txn.held, {})) TellToken(txn, token);
}

void RouterCore::State::TellToken(Transaction& txn, const SampledToken& token) {
  ++txn.tokens;
  txn.last_token = token.token;
  waiting.Serve(txn.tenant, FairQueue::kDrawnTokenWork);
  if (txn.phase == Phase::kPrefilling) BeginDecoding(txn);
  Emit(DeliverToken{txn.call_id, token});
}

// The attempt's first token has come.
void RouterCore::State::BeginDecoding(Transaction& txn) {
  table.SetPhase(txn, Phase::kDecoding);
  EndPrefillWork(txn);
  ++served;
  Attempt& attempt = txn.attempt;
  const Pair& pair = attempt.pair;
  attempt.first_token_us = now_us;
  if (!txn.decisions.empty()) txn.decisions.back().ttft_us = now_us - attempt.begun_us;
  pairing.LearnExposed(pair, attempt.through_us == 0 ? 0 : now_us - attempt.through_us);
  membership.Served(pair.decode);
  for (const InstanceRef& follower : pair.followers) membership.Served(follower);
  for (const KvWriter& stage : pair.chain.stages) membership.Served(stage.instance);
}

// The draw is a function of the tokens before it and the seed, so one pair draws what another one
// drew. If not, their bits differ (other hardware, say), and the text could go on as another one.
void RouterCore::State::Redrawn(Transaction& txn, int32_t token) {
  txn.attempt.redraws = false;
  if (token == txn.last_token) {
    Covered<"router: a text goes on elsewhere">();
    ++totals.resumes.continued_total;
    return BeginDecoding(txn);
  }
  ++totals.resumes.diverged_total;
  const Pair& pair = txn.attempt.pair;
  absl::Status status = WithLeg(
      absl::DataLossError(absl::StrCat("the text cannot go on: ", pair.chain.chain_id, " and ",
                                       pair.decode.id, " drew token ", token, " again where ",
                                       txn.last_token, " was told as the text's token ",
                                       txn.tokens - 1, ", after ", txn.failure.message())),
      RoleName(Role::kDecode), pair.decode.id);
  CloseLegs(txn, "the text cannot go on");
  Finish(txn, std::move(status));
}

void RouterCore::State::LearnPrompt(Transaction& txn, int cached_tokens) {
  Attempt& attempt = txn.attempt;
  attempt.through_us = now_us;
  const int cached = std::clamp(cached_tokens, 0, txn.read_tokens());
  totals.predictions.predicted_tokens_total += attempt.predicted.cached_tokens;
  totals.predictions.cached_tokens_total += cached;
  pairing.Correct(attempt.pair, attempt.predicted, cached);
  if (!txn.decisions.empty()) txn.decisions.back().cached_tokens = cached;
  if (txn.attempts == 1 && std::exchange(txn.has_begun, false)) {
    const int predicted = attempt.predicted.cached_tokens;
    waiting.Through(txn.tenant, txn.prompt_tokens - predicted, predicted - cached);
  }
  pairing.LearnPrompt(attempt.pair, txn.read_tokens() - cached, attempt.prefill_us, now_us);
}

void RouterCore::State::LearnAnswer(const Transaction& txn) {
  const Attempt& attempt = txn.attempt;
  const int drawn = txn.tokens - attempt.drawn_tokens;
  if (drawn < 2) return;
  pairing.LearnAnswer(attempt.pair, now_us - attempt.begun_us,
                      (now_us - attempt.first_token_us) / (drawn - 1));
}

void RouterCore::State::Complete(Transaction& txn, FinishReason reason) {
  LearnAnswer(txn);
  if (!txn.attempt.prefill_open) return Finish(txn, reason);
  txn.answer = reason;
  Covered<"router: an answer settles">();
  table.SetPhase(txn, Phase::kSettling);
  // A report is worth a moment; the prompt's tokens are part of the answer.
  const int64_t settled_us = txn.AwaitsPrompt() ? kNeverUs : now_us + limits.settle_us;
  table.SetTimer(txn, std::min(txn.deadline_us, settled_us));
}

void RouterCore::State::TimeOut(Transaction& txn) {
  if (txn.phase == Phase::kWaiting) return TimeOutWaiting(txn);
  if (txn.Complete()) {
    CloseLegs(txn, "the request is complete");
    return Finish(txn, txn.answer);
  }
  const Pair& pair = txn.attempt.pair;
  Role leg = Role::kDecode;
  std::string where;
  switch (txn.phase) {
    case Phase::kReserving:
      Covered<"router: a deadline passes while reserving">();
      where = absl::StrCat("while waiting for KV pages on ", pair.decode.id);
      break;
    case Phase::kPrefilling:
    case Phase::kSettling:  // For the prompt's tokens.
      leg = Role::kPrefill;
      Covered<"router: a deadline passes during prefill">();
      where = absl::StrCat("during prefill in chain ", pair.chain.chain_id);
      break;
    default:
      if (pair.colocated()) leg = Role::kPrefill;
      Covered<"router: a deadline passes while decoding">();
      where = absl::StrCat("after ", txn.tokens, " tokens from ", pair.decode.id);
  }
  absl::Status status =
      WithLeg(absl::DeadlineExceededError(absl::StrCat("the request's deadline passed ", where)),
              RoleName(leg), leg == Role::kDecode ? pair.decode.id : pair.chain.stage0.id);
  CloseLegs(txn, "the request's deadline passed");
  Finish(txn, std::move(status));
}

void RouterCore::State::CloseDecode(Transaction& txn, const std::string& reason) {
  if (!txn.attempt.decode_open) return;
  txn.attempt.decode_open = false;
  if (txn.attempt.pair.colocated()) {
    txn.attempt.prefill_open = false;
    return Emit(AbortPrefill{txn.attempt.id, txn.attempt.pair.chain.stage0, reason});
  }
  Emit(AbortDecode{txn.attempt.id, txn.attempt.pair.decode, reason});
}

void RouterCore::State::ClosePrefill(Transaction& txn, const std::string& reason) {
  if (!txn.attempt.prefill_open || txn.attempt.pair.colocated()) return;  // See CloseDecode.
  txn.attempt.prefill_open = false;
  Emit(AbortPrefill{txn.attempt.id, txn.attempt.pair.chain.stage0, reason});
}

void RouterCore::State::CloseLegs(Transaction& txn, const std::string& reason) {
  ClosePrefill(txn, reason);
  CloseDecode(txn, reason);
}

void RouterCore::State::NoteGrant(Transaction& txn) {
  if (!std::exchange(txn.attempt.ungranted, false)) return;
  pairing.Granted(txn.attempt.pair, txn.read_tokens());
}

void RouterCore::State::EndPrefillWork(Transaction& txn) {
  NoteGrant(txn);
  if (!std::exchange(txn.attempt.prefill_counted, false)) return;
  turns.Through(txn.attempt.pair.chain.stage0, txn.attempt.id);
  pairing.EndPrefill(txn.attempt.pair, txn.read_tokens(), txn.attempt.predicted.cached_tokens);
}

void RouterCore::State::EndWork(Transaction& txn) {
  EndPrefillWork(txn);
  if (!std::exchange(txn.attempt.decode_counted, false)) return;
  pairing.EndDecode(txn.attempt.pair, txn.read_tokens(), txn.new_tokens());
}

FinishCall RouterCore::State::EndOf(const Transaction& txn, absl::StatusOr<FinishReason> outcome) {
  FinishCall finish;
  finish.call_id = txn.call_id;
  finish.outcome = std::move(outcome);
  finish.attempts = txn.attempts;
  finish.resumes = txn.resumes;
  finish.chain_id = txn.attempt.pair.chain.chain_id;
  finish.decode_instance = txn.attempt.pair.decode.id;
  finish.decisions = txn.decisions;
  return finish;
}

void RouterCore::State::Finish(Transaction& txn, absl::StatusOr<FinishReason> outcome) {
  FinishCall finish = EndOf(txn, std::move(outcome));
  Remove(txn);
  Emit(std::move(finish));
}

void RouterCore::State::Remove(Transaction& txn) {
  EndWork(txn);
  // A request that has told nothing has cost its client nothing.
  const int64_t used = txn.tokens == 0 ? 0 : int64_t{txn.prompt_tokens} + txn.tokens;
  rates.GiveBack(txn.tenant, txn.charged_tokens - used, now_us);
  waiting.Remove(txn.tenant, txn.turn);
  if (txn.has_begun) waiting.Drop(txn.tenant);
  waiting.Go(txn.tenant);
  table.Remove(txn.call_id);
}

}  // namespace baton::router
