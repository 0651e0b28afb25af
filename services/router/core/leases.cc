// Leases of workers: asked for, kept by heartbeats, broken; who is told that its members changed.
#include "services/router/core/leases.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"
#include "services/router/core/router_state.h"

namespace baton::router {
namespace {

absl::Status HeldByAnother(const InstanceRef& instance) {
  return absl::AlreadyExistsError(
      absl::StrCat("another call of ", instance.id, " holds its lease here"));
}

}  // namespace

std::optional<uint64_t> Leases::Open(const InstanceRef& instance, uint64_t rpc_id,
                                     uint64_t number) {
  std::optional<uint64_t> replaced;
  if (const Call* call = Find(instance)) {
    replaced = call->rpc_id;
    workers_.erase(call->rpc_id);
  }
  calls_[instance] = Call{rpc_id, number};
  workers_[rpc_id] = instance;
  return replaced;
}

void Leases::Close(uint64_t rpc_id) {
  const auto found = workers_.find(rpc_id);
  if (found == workers_.end()) return;
  calls_.erase(found->second);
  workers_.erase(found);
}

std::optional<InstanceRef> Leases::WorkerOf(uint64_t rpc_id) const {
  const auto found = workers_.find(rpc_id);
  if (found == workers_.end()) return std::nullopt;
  return found->second;
}

Leases::Call* Leases::Find(const InstanceRef& instance) {
  const auto found = calls_.find(instance);
  return found == calls_.end() ? nullptr : &found->second;
}

// ---- RouterCore ----

void RouterCore::State::On(const LeaseAsked& event) {
  const InstanceRef& instance = event.worker.instance;
  const Leases::Call* standing = leases.Find(instance);
  const bool knows = std::find(event.held_by.begin(), event.held_by.end(), limits.incarnation) !=
                     event.held_by.end();
  if (standing != nullptr && (knows || event.call_number <= standing->number)) {
    Covered<"router: a worker asks beside the call that holds its lease">();
    return Emit(AnswerLease{event.rpc_id, HeldByAnother(instance), instance});
  }
  const auto known = membership.applicants().find(instance.id);
  absl::Status before;
  if (known != membership.applicants().end() && known->second.info.instance == instance) {
    before = known->second.refusal;
  }
  std::vector<Worker> lost;
  AnswerLease answer{event.rpc_id, membership.Register(event.worker, now_us, lost), instance};
  const bool taken = answer.status.ok();
  answer.repeated = !taken && answer.status == before;
  Emit(std::move(answer));
  for (const Worker& worker : lost) {
    LoseWorker(worker,
               worker.displaced
                   ? absl::StrCat("has given way to ", instance.id, ", which it does not fit")
                   : "was replaced by a new incarnation of itself",
               /*left=*/false);
  }
  if (!taken) return;
  if (const auto replaced = leases.Open(instance, event.rpc_id, event.call_number)) {
    Emit(EndLease{*replaced, HeldByAnother(instance)});
  }
}

void RouterCore::State::On(const HeartbeatReceived& event) {
  const std::optional<InstanceRef> sender = leases.WorkerOf(event.rpc_id);
  if (!sender.has_value()) return;  // The call has ended meanwhile.
  membership.Heartbeat(*sender, event.ready, event.load, now_us, event.linked, event.why_not_ready);
  const Worker& worker = *membership.Find(*sender);
  const WorkerInfo& info = worker.info;
  const int used_pages = membership.UsablePages(info) - event.load.free_pages;
  pairing.Report(*sender, event.load, int64_t{used_pages} * info.fingerprint.kv_layout.page_size);
  AnswerHeartbeat answer;
  answer.rpc_id = event.rpc_id;
  answer.tell_prompts_again = !event.taken_prompts.empty() &&
                              !pairing.NoteTaken(membership.roster(), *sender, event.taken_prompts);
  Leases::Call& call = *leases.Find(*sender);
  call.heard = true;
  if (std::exchange(call.list_due, false)) answer.workers = membership.ListFor(worker);
  if (event.draining) membership.SaysDraining(*sender);
  answer.drain = worker.drain_asked;
  // Nothing is added to them after this answer: the worker is in no pair.
  if (event.draining) answer.needed_requests = table.CountHeldBy(*sender);
  Emit(std::move(answer));
  if (!event.leaving) return;
  std::vector<Worker> lost;
  membership.Remove(*sender, now_us, lost);
  LoseWorkers(lost, "has left, for its time to drain was over", /*left=*/true);
}

// A killed process's connections break long before its lease is over. One that lives asks anew. A
// call without a heartbeat says nothing: a late router is asked again before it has answered.
void RouterCore::State::On(const LeaseBroken& event) {
  const std::optional<InstanceRef> instance = leases.WorkerOf(event.rpc_id);
  if (!instance.has_value()) return;
  const bool heard = leases.Find(*instance)->heard;
  leases.Close(event.rpc_id);
  if (heard) membership.Suspect(*instance, now_us);
}

void RouterCore::State::Suspect(const InstanceRef& instance) {
  if (!membership.FailedToServe(instance, now_us)) return;
  AskHeartbeatOf(instance);  // To show that it lives.
}

void RouterCore::State::AskHeartbeatOf(const InstanceRef& instance) {
  if (const Leases::Call* call = leases.Find(instance)) Emit(AskHeartbeat{call->rpc_id});
}

void RouterCore::State::EndLeaseOf(const InstanceRef& instance) {
  const Leases::Call* call = leases.Find(instance);
  if (call == nullptr) return;
  const uint64_t rpc_id = call->rpc_id;
  leases.Close(rpc_id);
  Emit(EndLease{rpc_id, absl::NotFoundError(absl::StrCat(instance.id, " has lost its lease"))});
}

void RouterCore::State::TellMembers() {
  for (const InstanceRef& member : membership.TakeRelisted()) {
    Leases::Call* call = leases.Find(member);
    // Who has not been told of the change before was asked then, or has just joined.
    if (call == nullptr || std::exchange(call->list_due, true)) continue;
    Emit(AskHeartbeat{call->rpc_id});
  }
}

}  // namespace baton::router
