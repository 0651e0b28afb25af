#include "services/decode/follower_service.h"

#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/server.h"
#include "services/decode/ranks/messages.h"
#include "services/decode/ranks/rank_links.h"

namespace baton::decode {
namespace {

constexpr int64_t kHousekeepingUs = 250'000;
// Probes ask for the role's service, whatever the rank.
constexpr char kServiceName[] = "baton.v1.Decode";

FollowerLimits LimitsOf(const DecodeOptions& options, const Executor& executor) {
  const KvGeometry& kv = executor.kv();
  FollowerLimits limits;
  limits.rank = executor.tensor_rank();
  limits.kv_heads = executor.config().num_key_value_heads;
  limits.layers = executor.config().num_hidden_layers;
  limits.page_size = kv.page_size;
  limits.page_count = kv.page_count;
  limits.slots = options.max_running_requests;
  limits.max_context_tokens = options.max_context_tokens;
  limits.vocab_size = executor.config().vocab_size;
  return limits;
}

absl::Status CheckOptions(const DecodeOptions& options, const Executor& executor) {
  if (!executor.first_stage() || !executor.last_stage()) {
    return InvalidField("disaggregation_mode", "a decode service needs all layers of the model");
  }
  if (executor.tensor_rank().rank == 0) {
    return InvalidField("tp_rank", "rank 0 is the service, the others are its followers");
  }
  if (options.max_running_requests < 1) {
    return InvalidField("max_running_requests", "must be positive");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<FollowerService>> FollowerService::Create(
    const DecodeOptions& options, const DecodeService::Parts& parts) {
  BATON_RETURN_IF_ERROR(CheckOptions(options, *parts.executor));
  std::unique_ptr<FollowerService> service(new FollowerService(options, parts));
  service->loop_->SetWakeHandler(
      [raw = service.get()](int64_t now_us) { return raw->Wake(now_us); });
  service->last_wake_us_ = NowUs();
  BATON_RETURN_IF_ERROR(service->Listen());
  service->loop_->Start();
  BATON_RETURN_IF_ERROR(service->kv_->Start());
  return service;
}

FollowerService::FollowerService(const DecodeOptions& options, const DecodeService::Parts& parts)
    : options_(options),
      parts_(parts),
      loop_(std::make_shared<EventLoop>("baton-decode")),
      core_(LimitsOf(options, *parts.executor)),
      steps_(parts.executor) {
  KvReceiver::Options kv;
  kv.table.self = options.self;
  kv.table.layout = parts.executor->kv().layout();
  kv.table.rank = parts.executor->tensor_rank();
  kv.table.model_kv_heads = parts.executor->config().num_key_value_heads;
  kv.table.slots = static_cast<uint32_t>(options.max_running_requests);
  kv.table.writer_lease_us = options.kv_lease_ms * 1000;
  kv.executor = parts.executor;
  kv.data_plane = parts.data_plane;
  kv.metrics = parts.metrics;
  kv.find_peer = [peers = parts.peers](const InstanceRef& writer) { return peers->Find(writer); };
  kv.deliver = [this](std::vector<LeaseEvent> events) {
    return loop_->PostCompletion([this, events = std::move(events)] {
      for (const LeaseEvent& event : events) events_.Raise(LeaseHeard{event});
    });
  };
  kv_ = std::make_unique<KvReceiver>(std::move(kv));
  joiner_ = std::make_unique<links::GroupJoiner>(Role::kDecode, parts.executor, loop_,
                                                 parts.connect_group);
  const int page_count = parts.executor->kv().page_count;
  link_ = std::make_unique<links::MemberLink>(
      links::MemberLink::Options{PlaceOf(options.self, options.decode_id, *parts.executor),
                                 page_count, /*max_plan_tokens=*/1, joiner_.get(), "decode.link"},
      LinkCallbacks());
  parts.metrics->Set(Metric::kKvPagesCapacity, page_count);
}

links::MemberLink::Callbacks FollowerService::LinkCallbacks() {
  links::MemberLink::Callbacks callbacks;
  callbacks.try_epoch = [this](const links::Hello& hello) {
    if (!core_.may_begin()) {
      return absl::UnavailableError("pages of the last epoch are still in use");
    }
    epoch_ = hello.epoch;
    events_.Raise(EpochBegan{});
    return absl::OkStatus();
  };
  callbacks.drop_epoch = [this](const absl::Status& why) {
    joiner_->Leave(why);
    events_.Raise(EpochOver{});
  };
  callbacks.describe = [this](v1::LinkReady& ready) {
    ready.set_newest_generation(core_.newest_generation());
  };
  callbacks.read = [this](const v1::LinkRequest& request) {
    if (!request.has_order()) {
      return links::MemberLink::Work{
          0, absl::InvalidArgumentError("a message on the link that is empty, or no order")};
    }
    absl::StatusOr<Order> order = FromProto(request.order());
    const absl::Status status = order.status();
    if (status.ok()) arriving_ = *std::move(order);
    return links::MemberLink::Work{epoch_, status};
  };
  callbacks.take = [this] { events_.Raise(OrderHeard{std::move(arriving_)}); };
  return callbacks;
}

FollowerService::~FollowerService() { Stop(); }

absl::Status FollowerService::Listen() {
  rpc::ServerOptions server;
  server.host = options_.host;
  server.port = options_.grpc_port;
  // A grant names every page of a context.
  server.max_request_bytes = rpc::PromptMessageBytes(options_.max_context_tokens);
  if (parts_.security != nullptr) server.credentials = parts_.security->ForServer();
  std::vector<grpc::Service*> services{&rpc_};
  if (parts_.beside != nullptr) services.push_back(parts_.beside);
  BATON_ASSIGN_OR_RETURN(auto running, rpc::StartServer(server, services));
  server_ = std::move(running.server);
  grpc_port_ = running.port;
  return absl::OkStatus();
}

grpc::ServerBidiReactor<v1::LinkRequest, v1::LinkResponse>* FollowerService::Rpc::Link(
    grpc::CallbackServerContext* /*context*/) {
  links::LinkStream::Callbacks callbacks;
  callbacks.on_request = [owner = owner_](std::shared_ptr<links::LinkStream> stream,
                                          v1::LinkRequest request) {
    return owner->loop_->Post([owner, stream = std::move(stream), request = std::move(request)] {
      owner->link_->OnRequest(stream, request);
    });
  };
  callbacks.on_end = [owner = owner_](const std::shared_ptr<links::LinkStream>& stream) {
    const bool posted =
        owner->loop_->PostCompletion([owner, stream] { owner->link_->OnEnd(stream); });
    if (!posted) stream->Finish(absl::UnavailableError("the decode service's rank has stopped"));
  };
  return links::LinkStream::Open(std::move(callbacks));
}

int64_t FollowerService::Wake(int64_t now_us) {
  last_wake_us_ = now_us;
  const int64_t next_us = link_->Wake(now_us);
  Publish();
  return std::min(next_us, now_us + kHousekeepingUs);
}

void FollowerService::Publish() {
  const bool serving = ready();
  if (std::exchange(serving_, serving) != serving) {
    server_->GetHealthCheckService()->SetServingStatus(kServiceName, serving);
  }
  const int page_count = parts_.executor->kv().page_count;
  const int held = core_.held_pages();
  parts_.metrics->Set(Metric::kReady, serving ? 1 : 0);
  parts_.metrics->Set(Metric::kKvPagesUsed, held);
  parts_.metrics->Set(Metric::kKvUsedRatio, static_cast<double>(held) / page_count);
  MutexLock lock(&mutex_);
  load_.set_free_pages(page_count - held);
}

// ---- What the core decides ----

void FollowerService::Handle(const FollowerEvent& event) {
  std::vector<FollowerAction> actions;
  core_.Handle(event, actions);
  for (FollowerAction& action : actions) {
    std::visit([this](auto& a) { Perform(a); }, action);
  }
}

// Nothing is drawn here, but rank 0 gets its logits only if every rank computes its part of them.
void FollowerService::Perform(RunStep& action) {
  const auto kept = std::make_shared<const RunStep>(std::move(action));
  Step step;
  step.keeps = kept;
  for (const RunStep::Sequence& sequence : kept->sequences) {
    SequenceStep& row = step.sequences.emplace_back();
    row.tokens = std::span(&sequence.token, 1);
    row.token_count = 1;
    row.prefix_length = sequence.position;
    row.pages = sequence.pages;
    row.draw = Draw{};
  }
  steps_.Submit(std::move(step), [this, number = kept->step](const StepResult& result) {
    const bool told = loop_->PostCompletion([this, number, status = result.status] {
      events_.Raise(FollowerStepEnded{number, joiner_->Blame(status)});
    });
    if (!told) {
      LOG(kDebug) << "a step ends after the end";
    }
  });
}

// Through the data thread, where the grant must be in force before a writer learns of it.
void FollowerService::Perform(const TellGranted& action) {
  kv_->After([this, epoch = epoch_, report = ToProto(action)] {
    const bool told = loop_->PostCompletion([this, epoch, report] {
      v1::LinkResponse response;
      *response.mutable_report() = report;
      link_->Report(epoch, std::move(response));
    });
    if (!told) {
      LOG(kDebug) << "a grant stands after the end";
    }
  });
}

void FollowerService::Perform(const TellLease& action) {
  v1::LinkResponse response;
  *response.mutable_report() = ToProto(action);
  link_->Report(epoch_, std::move(response));
}

// ---- Any thread ----

v1::WorkerLoad FollowerService::load() const {
  MutexLock lock(&mutex_);
  return load_;
}

absl::Status FollowerService::Liveness() const {
  return LivenessOf(NowUs(), last_wake_us_, kv_->last_tick_us(), *parts_.executor);
}

void FollowerService::BeginDrain(int64_t /*deadline_us*/) { draining_ = true; }

bool FollowerService::AtRest() {
  return loop_->Await([this] { return core_.AtRest(); }, 0);
}

void FollowerService::Stop() {
  if (std::exchange(stopped_, true)) return;
  const bool posted = loop_->PostCompletion(
      [this] { link_->Fail(absl::UnavailableError("the rank is stopping")); });
  if (!posted) {
    LOG(kWarning) << "the loop took no stop";
  }
  if (server_ != nullptr) rpc::StopServer(*server_);
  steps_.Stop();
  joiner_->Stop();
  loop_->Stop();
}

}  // namespace baton::decode
