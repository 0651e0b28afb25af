// A change of members is told to those of them that watch, with the event that made it.
#include "services/router/core/watches.h"

#include "absl/strings/str_cat.h"
#include "services/router/core/router_state.h"

namespace baton::router {

std::optional<uint64_t> Watches::Open(const InstanceRef& instance, uint64_t rpc_id) {
  const std::optional<uint64_t> replaced = RpcOf(instance);
  if (replaced.has_value()) instance_of_.erase(*replaced);
  rpc_of_[instance] = rpc_id;
  instance_of_[rpc_id] = instance;
  return replaced;
}

std::optional<InstanceRef> Watches::Close(uint64_t rpc_id) {
  const auto found = instance_of_.find(rpc_id);
  if (found == instance_of_.end()) return std::nullopt;
  const InstanceRef instance = found->second;
  instance_of_.erase(found);
  rpc_of_.erase(instance);
  return instance;
}

std::optional<uint64_t> Watches::RpcOf(const InstanceRef& instance) const {
  const auto found = rpc_of_.find(instance);
  if (found == rpc_of_.end()) return std::nullopt;
  return found->second;
}

void RouterCore::State::On(const WatchOpened& event) {
  const Worker* worker = membership.Find(event.instance);
  if (worker == nullptr) {
    return Emit(EndWatch{event.rpc_id, absl::NotFoundError(absl::StrCat(
                                           event.instance.id, " holds no lease here: register"))});
  }
  if (const auto replaced = watches.Open(event.instance, event.rpc_id)) {
    Emit(EndWatch{*replaced, absl::AbortedError("the worker watches by another call now")});
  }
  // The worker has not been told of changes before this call.
  if (worker->listed_version != membership.ListVersion(*worker)) Emit(NotifyWatch{event.rpc_id});
}

// A killed process's connections break long before its lease is over. One that lives says so by a
// heartbeat at once.
void RouterCore::State::On(const WatchBroken& event) {
  const auto instance = watches.Close(event.rpc_id);
  if (instance.has_value()) membership.Suspect(*instance, now_us);
}

void RouterCore::State::Suspect(const InstanceRef& instance) {
  if (!membership.FailedToServe(instance, now_us)) return;
  Notify(instance);  // Asked to show that it lives.
}

void RouterCore::State::Notify(const InstanceRef& member) {
  const auto rpc_id = watches.RpcOf(member);
  if (rpc_id.has_value() && membership.Find(member) != nullptr) Emit(NotifyWatch{*rpc_id});
}

void RouterCore::State::EndWatchOf(const InstanceRef& instance) {
  const auto rpc_id = watches.RpcOf(instance);
  if (!rpc_id.has_value()) return;
  watches.Close(*rpc_id);
  Emit(EndWatch{*rpc_id, absl::NotFoundError(absl::StrCat(instance.id, " has lost its lease"))});
}

void RouterCore::State::TellWatches() {
  for (const InstanceRef& member : membership.TakeRelisted()) Notify(member);
}

}  // namespace baton::router
