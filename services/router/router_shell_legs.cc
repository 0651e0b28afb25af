// RouterShell's side towards the legs: the core's actions become calls there, what comes back
// becomes events.
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/router/router_shell.h"

namespace baton::router {

void RouterShell::Perform(Reserve& action) {
  Session* session = SessionOf(action.call_id);
  if (session == nullptr) return;
  call_of_attempt_.erase(session->attempt_id());
  legs_->Forget(session->attempt_id());
  call_of_attempt_[action.attempt_id] = action.call_id;
  const int64_t now_us = NowUs();
  session->BeginAttempt(action.attempt_id, now_us);
  legs_->Reserve(action, {session->request().prompt_ids, session->request().sampling,
                          session->trace().BeginReserve(action, now_us)});
}

void RouterShell::Perform(OpenStream& action) {
  Session* session = SessionOfAttempt(action.attempt_id);
  if (session == nullptr) return legs_->OpenStream(action, {});
  const int64_t now_us = NowUs();
  session->OnReserved(now_us);
  legs_->OpenStream(action, session->trace().BeginStream(now_us));
}

void RouterShell::Perform(StartPrefill& action) {
  Session* session = SessionOf(action.call_id);
  if (session == nullptr) return;
  traffic_.CountPrompt(static_cast<int64_t>(session->request().prompt_ids.size()));
  legs_->StartPrefill(action, {session->request().prompt_ids, session->request().sampling,
                               session->trace().BeginPrefill(NowUs())});
}

void RouterShell::Perform(AbortPrefill& action) {
  if (Session* session = SessionOfAttempt(action.attempt_id)) {
    session->trace().AbortPrefill(action.reason, NowUs());
  }
  legs_->Abort(action);
}

void RouterShell::Perform(AbortDecode& action) {
  if (Session* session = SessionOfAttempt(action.attempt_id)) {
    session->trace().AbortDecode(action.reason, NowUs());
  }
  legs_->Abort(action);
}

// ---- LegEvents ----

void RouterShell::OnReserveReplied(uint64_t attempt_id, absl::StatusOr<Ticket> ticket) {
  if (Session* session = SessionOfAttempt(attempt_id)) {
    session->trace().EndReserve(ticket.status(), NowUs());
  }
  Dispatch(ReserveReplied{attempt_id, std::move(ticket)});
}

void RouterShell::OnToken(uint64_t attempt_id, SampledToken token) {
  if (token.token < 0 || token.token >= config_.vocab_size) {
    return OnDecodeEnded(attempt_id,
                         absl::InternalError(absl::StrCat("decode sent the token id ", token.token,
                                                          ", which is outside the vocabulary")));
  }
  Dispatch(TokenReceived{attempt_id, std::move(token)});
}

void RouterShell::OnDecodeEnded(uint64_t attempt_id, absl::StatusOr<FinishReason> outcome) {
  if (Session* session = SessionOfAttempt(attempt_id)) {
    session->trace().EndStream(outcome.status(), NowUs());
  }
  Dispatch(DecodeEnded{attempt_id, std::move(outcome)});
}

void RouterShell::OnPrefillEnded(uint64_t attempt_id, absl::Status status, v1::PrefillReport report,
                                 std::vector<SampledToken> prompt_tokens) {
  if (Session* session = SessionOfAttempt(attempt_id)) {
    if (status.ok()) status = session->CheckPrompt(prompt_tokens);
    session->trace().EndPrefill(status, report, NowUs());
    session->OnPrefillReport(std::move(report));
  }
  Dispatch(PrefillEnded{attempt_id, std::move(status), std::move(prompt_tokens)});
}

}  // namespace baton::router
