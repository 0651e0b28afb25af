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

void RouterShell::Register(WorkerInfo worker, std::function<void(absl::Status)> done) {
  const uint64_t rpc_id = next_rpc_id_++;
  const bool posted = loop_.Post([this, rpc_id, worker = std::move(worker), done]() mutable {
    status_calls_[rpc_id] = std::move(done);
    Dispatch(RegisterRequested{rpc_id, std::move(worker)});
  });
  if (!posted) done(Stopping());
}

void RouterShell::Heartbeat(HeartbeatReceived heartbeat, std::function<void(ReplyHeartbeat)> done) {
  heartbeat.rpc_id = next_rpc_id_++;
  const bool posted = loop_.Post([this, heartbeat = std::move(heartbeat), done]() mutable {
    heartbeat_calls_[heartbeat.rpc_id] = std::move(done);
    Dispatch(std::move(heartbeat));
  });
  if (posted) return;
  ReplyHeartbeat refused;
  refused.status = Stopping();
  done(std::move(refused));
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

uint64_t RouterShell::Watch(InstanceRef instance, WatchCallbacks callbacks) {
  const uint64_t rpc_id = next_rpc_id_++;
  const auto end = callbacks.end;
  const bool posted = loop_.Post(
      [this, rpc_id, instance = std::move(instance), callbacks = std::move(callbacks)]() mutable {
        watch_calls_[rpc_id] = std::move(callbacks);
        Dispatch(WatchOpened{rpc_id, std::move(instance)});
      });
  if (!posted) end(Stopping());
  return rpc_id;
}

void RouterShell::Unwatch(uint64_t rpc_id) {
  const bool posted = loop_.Post([this, rpc_id] {
    watch_calls_.erase(rpc_id);
    Dispatch(WatchBroken{rpc_id});
  });
  if (!posted) {
    LOG(kDebug) << "a watch broke after the router's loop";
  }
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
void RouterShell::Perform(ReplyRegister& action) {
  const std::string& id = action.instance.id;
  if (action.status.ok()) {
    LOG(kInfo) << id << " has registered, at " << AddressOf(action.instance);
  } else if (!action.repeated) {
    LOG(kWarning) << id << " is refused: " << action.status.message();
  }
  Answer(action.rpc_id, action.status);
}

void RouterShell::Answer(uint64_t rpc_id, const absl::Status& status) {
  const auto entry = status_calls_.find(rpc_id);
  if (entry == status_calls_.end()) return;
  const auto done = std::move(entry->second);
  status_calls_.erase(entry);
  done(status);
}

void RouterShell::Perform(ReplyHeartbeat& action) {
  const auto entry = heartbeat_calls_.find(action.rpc_id);
  if (entry == heartbeat_calls_.end()) return;
  const auto done = std::move(entry->second);
  heartbeat_calls_.erase(entry);
  done(std::move(action));
}

void RouterShell::Perform(NotifyWatch& action) {
  const auto entry = watch_calls_.find(action.rpc_id);
  if (entry == watch_calls_.end()) return;
  if (const absl::Status lost = Failpoint("router.notice"); !lost.ok()) return;
  entry->second.notify();
}

void RouterShell::Perform(EndWatch& action) {
  const auto entry = watch_calls_.find(action.rpc_id);
  if (entry == watch_calls_.end()) return;
  const auto end = std::move(entry->second.end);
  watch_calls_.erase(entry);
  end(action.status);
}

// The server's end would wait for them.
void RouterShell::EndWatches() {
  for (const auto& [rpc_id, callbacks] : std::exchange(watch_calls_, {})) callbacks.end(Stopping());
}

}  // namespace baton::router
