// RouterShell's side towards the legs: the core's actions become calls there, what comes back
// becomes events.
#include <utility>
#include <variant>

#include "common/base/log.h"
#include "services/router/router_shell.h"

namespace baton::router {
namespace {

LegRequest LegRequestOf(const Session& session, int drawn_tokens,
                        const tracing::TraceContext& trace, int64_t head_start_us = 0) {
  const SessionRequest& request = session.request();
  return {session.ToRead(drawn_tokens),
          drawn_tokens,
          request.sampling,
          request.cache_salt,
          request.prefix,
          request.priority,
          head_start_us,
          trace};
}

}  // namespace

Session* RouterShell::BeginAttempt(uint64_t call_id, uint64_t attempt_id, int max_tokens,
                                   int64_t now_us) {
  Session* session = SessionOf(call_id);
  if (session == nullptr) return nullptr;
  call_of_attempt_.erase(session->attempt_id());
  call_of_attempt_[attempt_id] = call_id;
  session->BeginAttempt(attempt_id, now_us);
  session->LimitOutput(max_tokens);
  return session;
}

void RouterShell::Perform(Reserve& action) {
  const int64_t now_us = NowUs();
  Session* session = BeginAttempt(action.call_id, action.attempt_id, action.max_tokens, now_us);
  if (session == nullptr) return;
  const tracing::TraceContext trace = session->trace().BeginReserve(action, now_us);
  legs_->Reserve(action, LegRequestOf(*session, action.drawn_tokens, trace));
}

void RouterShell::Perform(OpenStream& action) {
  Session* session = SessionOfAttempt(action.attempt_id);
  if (session == nullptr) return;
  const int64_t now_us = NowUs();
  session->OnReserved(now_us);
  legs_->OpenStream(action, session->trace().BeginStream(now_us));
}

void RouterShell::Perform(StartPrefill& action) {
  Session* session = SessionOf(action.call_id);
  if (session == nullptr) return;
  const tracing::TraceContext trace = session->trace().BeginPrefill(NowUs());
  const LegRequest request =
      LegRequestOf(*session, action.drawn_tokens, trace, action.head_start_us);
  traffic_.CountPrompt(static_cast<int64_t>(request.prompt_ids.size()));
  legs_->StartPrefill(action, request);
}

void RouterShell::Perform(StartGeneration& action) {
  const int64_t now_us = NowUs();
  Session* session = BeginAttempt(action.call_id, action.attempt_id, action.max_tokens, now_us);
  if (session == nullptr) return;
  const tracing::TraceContext trace = session->trace().BeginGeneration(action, now_us);
  const LegRequest request =
      LegRequestOf(*session, action.drawn_tokens, trace, action.head_start_us);
  traffic_.CountPrompt(static_cast<int64_t>(request.prompt_ids.size()));
  legs_->StartGeneration(action, request);
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

// ---- What comes of the legs' calls ----

void RouterShell::HearLeg(Event event) {
  const int64_t now_us = NowUs();
  if (const auto* replied = std::get_if<ReserveReplied>(&event)) {
    Session* session = SessionOfAttempt(replied->attempt_id);
    if (session != nullptr) session->trace().EndReserve(replied->ticket.status(), now_us);
  } else if (const auto* ended = std::get_if<DecodeEnded>(&event)) {
    Session* session = SessionOfAttempt(ended->attempt_id);
    if (session != nullptr) session->trace().EndStream(ended->outcome.status(), now_us);
  } else if (auto* prefilled = std::get_if<PrefillEnded>(&event)) {
    Session* session = SessionOfAttempt(prefilled->attempt_id);
    if (session != nullptr) {
      prefilled->cached_tokens = session->prefill_report().cached_tokens();
      session->trace().EndPrefill(prefilled->status, session->prefill_report(), now_us);
    }
  }
  Dispatch(std::move(event));
}

void RouterShell::Perform(DeliverPrompt& action) {
  Session* session = SessionOf(action.call_id);
  if (session != nullptr) session->DeliverPrompt(action.tokens);
}

void RouterShell::Perform(DeliverToken& action) {
  Session* session = SessionOf(action.call_id);
  if (session == nullptr) return;
  traffic_.CountToken();
  if (session->DeliverToken(action.token, NowUs())) Dispatch(StopMatched{action.call_id});
}

Session* RouterShell::SessionOfAttempt(uint64_t attempt_id) {
  const auto entry = call_of_attempt_.find(attempt_id);
  return entry == call_of_attempt_.end() ? nullptr : SessionOf(entry->second);
}

std::string RouterShell::AddressOf(const InstanceRef& instance) const {
  const Worker* worker = core_.membership().Find(instance);
  return worker == nullptr ? "" : worker->info.grpc_address;
}

// RouterShell's leaving: the core decides, this asks it until nothing is left.
void RouterShell::BeginDrain(int64_t settle_ms, int64_t timeout_ms) {
  {
    MutexLock lock(&mutex_);
    draining_ = true;
    readiness_ = {false, "the router is draining"};
  }
  const bool posted = loop_.PostCompletion([this, settle_ms, timeout_ms] {
    Dispatch(RouterDrainBegan{settle_ms * 1000, timeout_ms * 1000});
  });
  if (!posted) {
    LOG(kDebug) << "a drain begins after the end";
  }
}

bool RouterShell::AwaitDrained(int64_t limit_ms) {
  return loop_.Await([this] { return core_.drain(NowUs()) == RouterDrain::kDrained; }, limit_ms);
}

RouterLoad RouterShell::load() {
  RouterLoad load;
  loop_.Await(
      [this, &load] {
        load = core_.load();
        return true;
      },
      0);
  return load;
}

}  // namespace baton::router
