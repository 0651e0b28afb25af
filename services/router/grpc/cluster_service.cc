#include "services/router/grpc/cluster_service.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/rpc/cluster_security.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"
#include "services/router/worker_convert.h"

namespace baton::router {
namespace {

constexpr int kMaxPrompts = 65536;  // As many as --max-prefill-requests may be.
constexpr int kMaxLinked = kMaxStages * kMaxTensorRanks;
constexpr int kMaxTakenKeys = 4096;

grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(status));
  return reactor;
}

// The caller is a worker of this name.
absl::Status CheckWorker(const grpc::CallbackServerContext& context, const InstanceRef& instance) {
  const absl::Status prefill = rpc::CheckCaller(context, {rpc::PeerRole::kPrefill, instance.id});
  return prefill.ok() ? prefill : rpc::CheckCaller(context, {rpc::PeerRole::kDecode, instance.id});
}

// One Cluster.Watch call: a notice for a worker, and another one when the first is written and more
// has changed since. So a worker that doesn't read costs one notice, however often its members
// change.
class WatchStream : public grpc::ServerWriteReactor<v1::WatchNotice> {
 public:
  // The stream owns itself until gRPC is done with it; `shell` outlives it.
  static WatchStream* Start(RouterShell& shell, InstanceRef instance);
  static WatchStream* Refuse(RouterShell& shell, const absl::Status& status);
  explicit WatchStream(RouterShell& shell) : shell_(shell) {}

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { self_.reset(); }

  void Notify();
  void End(const absl::Status& status);
  // Starts the next write or, at the end, finishes. At most one write is outstanding.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  RouterShell& shell_;
  Mutex mutex_;
  uint64_t rpc_id_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: the shell has not named it yet.
  const v1::WatchNotice notice_;
  bool due_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<WatchStream> self_;
};

WatchStream* WatchStream::Start(RouterShell& shell, InstanceRef instance) {
  auto stream = std::make_shared<WatchStream>(shell);
  stream->self_ = stream;
  RouterShell::WatchCallbacks callbacks;
  callbacks.notify = [stream] { stream->Notify(); };
  callbacks.end = [stream](const absl::Status& status) { stream->End(status); };
  const uint64_t rpc_id = shell.Watch(std::move(instance), std::move(callbacks));
  bool cancelled = false;
  {
    MutexLock lock(&stream->mutex_);
    stream->rpc_id_ = rpc_id;
    cancelled = stream->cancelled_;
  }
  if (cancelled) shell.Unwatch(rpc_id);
  return stream.get();
}

WatchStream* WatchStream::Refuse(RouterShell& shell, const absl::Status& status) {
  auto stream = std::make_shared<WatchStream>(shell);
  stream->self_ = stream;
  stream->End(status);
  return stream.get();
}

void WatchStream::Notify() {
  MutexLock lock(&mutex_);
  due_ = true;
  Advance();
}

void WatchStream::End(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (!end_.has_value()) end_ = rpc::ToGrpc(status);
  Advance();
}

void WatchStream::Advance() {
  if (writing_ || finished_) return;
  if (end_.has_value()) {
    finished_ = true;
    return Finish(*end_);
  }
  if (!std::exchange(due_, false)) return;
  writing_ = true;
  StartWrite(&notice_);
}

void WatchStream::OnWriteDone(bool ok) {
  MutexLock lock(&mutex_);
  writing_ = false;
  if (!ok && !end_.has_value()) end_ = grpc::Status::CANCELLED;
  Advance();
}

void WatchStream::OnCancel() {
  uint64_t rpc_id = 0;
  {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    rpc_id = rpc_id_;
    if (!end_.has_value()) end_ = grpc::Status::CANCELLED;
    Advance();
  }
  if (rpc_id != 0) shell_.Unwatch(rpc_id);
}

}  // namespace

grpc::ServerUnaryReactor* ClusterService::Register(grpc::CallbackServerContext* context,
                                                   const v1::RegisterRequest* request,
                                                   v1::RegisterResponse* response) {
  absl::StatusOr<WorkerInfo> worker = WorkerFromProto(request->worker());
  if (!worker.ok()) return Refuse(context, worker.status());
  const absl::Status caller = rpc::CheckCaller(
      *context, {worker->role == Role::kPrefill ? rpc::PeerRole::kPrefill : rpc::PeerRole::kDecode,
                 worker->instance.id});
  if (!caller.ok()) return Refuse(context, caller);
  response->set_heartbeat_interval_ms(shell_.config().options.heartbeat_interval_ms());
  response->set_lease_ms(shell_.config().options.lease_ms());
  response->set_router_incarnation(shell_.incarnation());
  response->set_protocol_version(kProtocolVersion);
  response->set_oldest_protocol_version(kOldestProtocolVersion);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  shell_.Register(*std::move(worker),
                  [reactor](const absl::Status& status) { reactor->Finish(rpc::ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::Heartbeat(grpc::CallbackServerContext* context,
                                                    const v1::HeartbeatRequest* request,
                                                    v1::HeartbeatResponse* response) {
  const absl::StatusOr<InstanceRef> instance = rpc::FromProto(request->instance(), "instance");
  if (!instance.ok()) return Refuse(context, instance.status());
  const absl::Status caller = CheckWorker(*context, *instance);
  if (!caller.ok()) return Refuse(context, caller);
  const absl::StatusOr<WorkerLoad> load = LoadFromProto(request->load());
  if (!load.ok()) return Refuse(context, load.status());
  if (request->linked_size() > kMaxLinked) {
    return Refuse(context, InvalidField("linked", absl::StrCat("must have at most ", kMaxLinked,
                                                               " entries")));
  }
  HeartbeatReceived heartbeat;
  heartbeat.instance = *instance;
  heartbeat.router_incarnation = request->router_incarnation();
  heartbeat.view_version = request->view_version();
  heartbeat.ready = request->ready();
  heartbeat.load = *load;
  heartbeat.why_not_ready = rpc::Shortened(request->why_not_ready());
  heartbeat.draining = request->draining();
  heartbeat.leaving = request->leaving();
  heartbeat.linked.assign(request->linked().begin(), request->linked().end());
  if (request->load().prompts_size() > kMaxPrompts) {
    return Refuse(context, InvalidField("load.prompts", absl::StrCat("must have at most ",
                                                                     kMaxPrompts, " entries")));
  }
  int keys = 0;
  for (const v1::TakenPrompt& taken : request->taken_prompts()) keys += taken.prefix_keys_size();
  if (std::max(keys, request->taken_prompts_size()) > kMaxTakenKeys) {
    return Refuse(context, InvalidField("taken_prompts", absl::StrCat("must have at most ",
                                                                      kMaxTakenKeys, " keys")));
  }
  for (const v1::TakenPrompt& taken : request->taken_prompts()) {
    heartbeat.taken_prompts.emplace_back(taken.prefix_keys().begin(), taken.prefix_keys().end());
  }
  std::vector<std::pair<uint64_t, int>> prompts;
  for (const v1::PromptProgress& prompt : request->load().prompts()) {
    prompts.emplace_back(prompt.attempt_id(), prompt.computed_tokens());
  }
  if (!prompts.empty()) shell_.NoteProgress(std::move(prompts));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  shell_.Heartbeat(std::move(heartbeat), [reactor, response](const ReplyHeartbeat& reply) {
    response->set_view_version(reply.view_version);
    for (const WorkerInfo& worker : reply.workers) *response->add_workers() = ToProto(worker);
    // Said again with every answer, for this one may get lost.
    response->set_drain(reply.drain && Failpoint("router.ask_drain").ok());
    response->set_needed_requests(reply.needed_requests);
    response->set_tell_prompts_again(reply.tell_prompts_again);
    reactor->Finish(rpc::ToGrpc(reply.status));
  });
  return reactor;
}

grpc::ServerWriteReactor<v1::WatchNotice>* ClusterService::Watch(
    grpc::CallbackServerContext* context, const v1::WatchRequest* request) {
  absl::StatusOr<InstanceRef> instance = rpc::FromProto(request->instance(), "instance");
  if (instance.ok()) {
    const absl::Status caller = CheckWorker(*context, *instance);
    if (!caller.ok()) instance = caller;
  }
  return instance.ok() ? WatchStream::Start(shell_, *std::move(instance))
                       : WatchStream::Refuse(shell_, instance.status());
}

grpc::ServerUnaryReactor* ClusterService::Find(grpc::CallbackServerContext* context,
                                               const v1::FindRequest* request,
                                               v1::FindResponse* response) {
  const absl::StatusOr<InstanceRef> instance = rpc::FromProto(request->instance(), "instance");
  if (!instance.ok()) return Refuse(context, instance.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  shell_.List([reactor, response, instance = *instance](const absl::Status& status,
                                                        const Membership* members, int64_t) {
    absl::Status outcome = status;
    const Worker* worker = members == nullptr ? nullptr : members->Find(instance);
    if (worker != nullptr) {
      *response->mutable_worker() = ToProto(worker->info);
    } else if (outcome.ok()) {
      outcome = absl::NotFoundError(absl::StrCat(
          instance.id, " incarnation ", absl::Hex(instance.incarnation), " holds no lease here"));
    }
    reactor->Finish(rpc::ToGrpc(outcome));
  });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::Drain(grpc::CallbackServerContext* context,
                                                const v1::DrainRequest* request,
                                                v1::DrainResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  shell_.Drain(request->instance_id(),
               [reactor](const absl::Status& status) { reactor->Finish(rpc::ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::List(grpc::CallbackServerContext* context,
                                               const v1::ListRequest*, v1::ListResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  shell_.List(
      [reactor, response](const absl::Status& status, const Membership* members, int64_t now_us) {
        if (members != nullptr) *response = ToProto(*members, now_us);
        // They say how to write KV, which is for workers.
        for (auto& listed : *response->mutable_workers()) {
          listed.mutable_worker()->clear_data_address();
        }
        for (auto& refused : *response->mutable_refused()) {
          refused.mutable_worker()->clear_data_address();
        }
        reactor->Finish(rpc::ToGrpc(status));
      });
  return reactor;
}

}  // namespace baton::router
