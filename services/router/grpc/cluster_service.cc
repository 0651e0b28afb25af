#include "services/router/grpc/cluster_service.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/cluster_security.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/server_stream.h"
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

using LeaseStream = rpc::ServerStream<v1::LeaseRequest, v1::LeaseResponse>;

absl::StatusOr<HeartbeatReceived> FromProto(const v1::HeartbeatRequest& proto) {
  HeartbeatReceived heartbeat;
  BATON_ASSIGN_OR_RETURN(heartbeat.load, LoadFromProto(proto.load()));
  const auto check = [](int size, int most, const char* field, const char* what) {
    if (size <= most) return absl::OkStatus();
    return InvalidField(field, absl::StrCat("must have at most ", most, " ", what));
  };
  BATON_RETURN_IF_ERROR(check(proto.linked_size(), kMaxLinked, "linked", "entries"));
  BATON_RETURN_IF_ERROR(check(proto.load().prompts_size(), kMaxPrompts, "load.prompts", "entries"));
  int keys = 0;
  for (const v1::TakenPrompt& taken : proto.taken_prompts()) keys += taken.prefix_keys_size();
  BATON_RETURN_IF_ERROR(
      check(std::max(keys, proto.taken_prompts_size()), kMaxTakenKeys, "taken_prompts", "keys"));
  heartbeat.ready = proto.ready();
  heartbeat.why_not_ready = rpc::Shortened(proto.why_not_ready());
  heartbeat.draining = proto.draining();
  heartbeat.leaving = proto.leaving();
  heartbeat.linked.assign(proto.linked().begin(), proto.linked().end());
  for (const v1::TakenPrompt& taken : proto.taken_prompts()) {
    heartbeat.taken_prompts.emplace_back(taken.prefix_keys().begin(), taken.prefix_keys().end());
  }
  return heartbeat;
}

v1::HeartbeatResponse ToProto(const AnswerHeartbeat& answer) {
  v1::HeartbeatResponse proto;
  for (const WorkerInfo& worker : answer.workers) *proto.add_workers() = ToProto(worker);
  // Said again with every answer.
  proto.set_drain(answer.drain && Failpoint("router.ask_drain").ok());
  proto.set_needed_requests(answer.needed_requests);
  proto.set_tell_prompts_again(answer.tell_prompts_again);
  return proto;
}

// One Cluster.Lease call. Its messages come on gRPC's threads, one at a time.
class LeaseCall : public std::enable_shared_from_this<LeaseCall> {
 public:
  using Stream = std::shared_ptr<LeaseStream>;

  // `shell` and `context` outlive it.
  LeaseCall(RouterShell& shell, grpc::CallbackServerContext& context)
      : shell_(shell), context_(context), rpc_id_(shell.NewLeaseCall()) {}

  // Not OK: the call ends with it.
  absl::Status Take(const Stream& stream, const v1::LeaseRequest& request) {
    const bool first = !std::exchange(registered_, true);
    if (first && request.has_registration()) return Register(stream, request.registration());
    if (!first && request.has_heartbeat()) return Hear(request.heartbeat());
    return absl::InvalidArgumentError(
        "a lease's first message is a registration, all others are heartbeats");
  }

  void End() {
    if (!shell_.BreakLease(rpc_id_)) {
      LOG(kDebug) << "a lease breaks after the router's loop";
    }
  }

 private:
  absl::Status Register(const Stream& stream, const v1::RegisterRequest& request) {
    BATON_ASSIGN_OR_RETURN(WorkerInfo worker, WorkerFromProto(request.worker()));
    const rpc::PeerRole role =
        worker.role == Role::kPrefill ? rpc::PeerRole::kPrefill : rpc::PeerRole::kDecode;
    BATON_RETURN_IF_ERROR(rpc::CheckCaller(context_, {role, worker.instance.id}));
    LeaseAsked asked{rpc_id_, std::move(worker), {}, request.call_number()};
    asked.held_by.assign(request.held_by().begin(), request.held_by().end());
    RouterShell::LeaseCalls calls;
    calls.granted = [call = shared_from_this(), stream] {
      v1::LeaseResponse response;
      *response.mutable_registered() = call->Registered();
      stream->Write(std::move(response));
    };
    calls.answer = [call = shared_from_this(), stream](const AnswerHeartbeat& answer) {
      v1::LeaseResponse response;
      *response.mutable_heartbeat() = ToProto(answer);
      call->awaited_ = false;
      stream->Write(std::move(response));
    };
    calls.ask = [stream] { stream->Write(v1::LeaseResponse()); };
    calls.end = [stream](const absl::Status& status) { stream->Finish(status); };
    return Taken(shell_.AskLease(std::move(asked), std::move(calls)));
  }

  absl::Status Hear(const v1::HeartbeatRequest& request) {
    // So the loop's mailbox always has room for it.
    if (awaited_.exchange(true)) {
      return absl::InvalidArgumentError("a heartbeat before the last one was answered");
    }
    if (shell_.config().cluster_security != nullptr) {
      shell_.config().cluster_security->LookAtFiles();
    }
    BATON_ASSIGN_OR_RETURN(HeartbeatReceived heartbeat, FromProto(request));
    heartbeat.rpc_id = rpc_id_;
    std::vector<std::pair<uint64_t, int>> prompts;
    for (const v1::PromptProgress& prompt : request.load().prompts()) {
      prompts.emplace_back(prompt.attempt_id(), prompt.computed_tokens());
    }
    if (!prompts.empty()) shell_.NoteProgress(std::move(prompts));
    return Taken(shell_.Heartbeat(std::move(heartbeat)));
  }

  v1::RegisterResponse Registered() const {
    v1::RegisterResponse response;
    response.set_heartbeat_interval_ms(shell_.config().options.heartbeat_interval_ms());
    response.set_lease_ms(shell_.config().options.lease_ms());
    response.set_router_incarnation(shell_.incarnation());
    response.set_protocol_version(kProtocolVersion);
    response.set_oldest_protocol_version(kOldestProtocolVersion);
    return response;
  }

  static absl::Status Taken(bool taken) {
    return taken ? absl::OkStatus()
                 : absl::UnavailableError("the router takes no more messages of workers");
  }

  RouterShell& shell_;
  grpc::CallbackServerContext& context_;
  const uint64_t rpc_id_;
  bool registered_ = false;
  std::atomic<bool> awaited_{false};  // The answer to a heartbeat.
};

}  // namespace

grpc::ServerBidiReactor<v1::LeaseRequest, v1::LeaseResponse>* ClusterService::Lease(
    grpc::CallbackServerContext* context) {
  const auto call = std::make_shared<LeaseCall>(shell_, *context);
  LeaseStream::Callbacks callbacks;
  callbacks.on_request = [call](const LeaseCall::Stream& stream, const v1::LeaseRequest& request) {
    if (absl::Status status = call->Take(stream, request); !status.ok()) stream->Finish(status);
    return true;
  };
  callbacks.on_end = [call](const LeaseCall::Stream& stream) {
    call->End();
    stream->Finish(absl::CancelledError("the worker has ended the call"));
  };
  return LeaseStream::Open(std::move(callbacks));
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
