// RouterShell's side towards the workers: what they ask, and what the core answers.
#include <utility>

#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "services/router/router_shell.h"

namespace baton::router {

absl::Status RouterShell::Stopping() {
  return WithLeg(
      EndedByDrain(absl::UnavailableError("the router is shutting down; send the request again")),
      "router", "");
}

bool RouterShell::AskLease(LeaseAsked asked, LeaseCalls calls) {
  return loop_.Post([this, asked = std::move(asked), calls = std::move(calls)]() mutable {
    lease_calls_[asked.rpc_id] = std::move(calls);
    Dispatch(std::move(asked));
  });
}

bool RouterShell::Heartbeat(HeartbeatReceived heartbeat) {
  return loop_.PostCompletion(
      [this, heartbeat = std::move(heartbeat)]() mutable { Dispatch(std::move(heartbeat)); });
}

bool RouterShell::BreakLease(uint64_t rpc_id) {
  return loop_.PostCompletion([this, rpc_id] {
    lease_calls_.erase(rpc_id);
    Dispatch(LeaseBroken{rpc_id});
  });
}

void RouterShell::NoteProgress(std::vector<std::pair<uint64_t, int>> prompts) {
  // Lost with a full mailbox: the next heartbeat says it again.
  (void)loop_.Post([this, prompts = std::move(prompts)] {
    for (const auto& [attempt_id, computed_tokens] : prompts) {
      Session* session = SessionOfAttempt(attempt_id);
      if (session != nullptr) session->OnPromptProgress(computed_tokens);
    }
  });
}

void RouterShell::Drain(const std::string& instance_id, std::function<void(absl::Status)> done) {
  const uint64_t rpc_id = next_rpc_id_++;
  const bool posted = loop_.Post([this, rpc_id, instance_id, done]() mutable {
    LOG(kInfo) << "draining " << instance_id;
    status_calls_[rpc_id] = std::move(done);
    Dispatch(DrainRequested{rpc_id, instance_id});
  });
  if (!posted) done(Stopping());
}

void RouterShell::List(const std::function<void(absl::Status, const Membership*, int64_t)>& done) {
  const bool posted =
      loop_.Post([this, done] { done(absl::OkStatus(), &core_.membership(), NowUs()); });
  if (!posted) done(Stopping(), nullptr, 0);
}

// ---- What the core answers ----

// Who is refused for now asks twice a second.
void RouterShell::Perform(AnswerLease& action) {
  const std::string& id = action.instance.id;
  if (!action.status.ok()) {
    // One that asks at another address holds its lease.
    if (!action.repeated && !absl::IsAlreadyExists(action.status)) {
      LOG(kWarning) << id << " is refused: " << action.status.message();
    }
    return EndLeaseCall(action.rpc_id, action.status);
  }
  LOG(kInfo) << id << " has registered, at " << AddressOf(action.instance);
  const auto call = lease_calls_.find(action.rpc_id);
  if (call != lease_calls_.end()) call->second.granted();
}

void RouterShell::Answer(uint64_t rpc_id, const absl::Status& status) {
  const auto entry = status_calls_.find(rpc_id);
  if (entry == status_calls_.end()) return;
  const auto done = std::move(entry->second);
  status_calls_.erase(entry);
  done(status);
}

void RouterShell::Perform(AnswerHeartbeat& action) {
  const auto call = lease_calls_.find(action.rpc_id);
  if (call != lease_calls_.end()) call->second.answer(action);
}

void RouterShell::Perform(AskHeartbeat& action) {
  const auto call = lease_calls_.find(action.rpc_id);
  if (call != lease_calls_.end()) call->second.ask();
}

void RouterShell::EndLeaseCall(uint64_t rpc_id, const absl::Status& status) {
  const auto call = lease_calls_.extract(rpc_id);
  if (!call.empty()) call.mapped().end(status);
}

// The server's end would wait for them.
void RouterShell::EndLeases() {
  for (const auto& [rpc_id, calls] : std::exchange(lease_calls_, {})) calls.end(Stopping());
}

}  // namespace baton::router
