#include "services/prefill/prefill_service.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "services/prefill/service_limits.h"

namespace baton::prefill {
namespace {

constexpr int64_t kHousekeepingUs = 250'000;
constexpr int64_t kLoopStuckUs = 5'000'000;
constexpr int64_t kComputeStuckUs = 600'000'000;
constexpr char kServiceName[] = "baton.v1.Prefill";
constexpr char kDecodeServiceName[] = "baton.v1.Decode";

links::ChainPlace PlaceOf(const PrefillOptions& options, const Executor& executor) {
  const LayerRange layers{executor.kv().layer_begin, executor.kv().layer_end};
  return {options.chain_id,
          options.pp_rank,
          options.pp_size,
          executor.config().num_hidden_layers,
          {options.self, layers, options.tensor_rank},
          options.role};
}

const char* LinkFailpoint(Role role) {
  return role == Role::kDecode ? "decode.link" : "prefill.link";
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrefillService>> PrefillService::Create(
    const PrefillOptions& options, const Parts& parts, std::unique_ptr<Front> front) {
  BATON_RETURN_IF_ERROR(CheckOptions(options, *parts.executor));
  std::unique_ptr<PrefillService> service(new PrefillService(options, parts, std::move(front)));
  // Last of what can fail, so that a service that did not come to be is registered nowhere.
  BATON_RETURN_IF_ERROR(service->Listen());
  if (!service->decode() || options.pp_size > 1) {
    BATON_RETURN_IF_ERROR(
        parts.data_plane->Register(MessageKind::kActivations, service->activations_.get()));
  }
  const absl::Status status = service->decode() ? service->front_->Start() : service->kv_->Start();
  if (!status.ok()) {
    parts.data_plane->Unregister(MessageKind::kActivations);
    return status;
  }
  service->last_wake_us_ = NowUs();
  service->loop_->SetWakeHandler(
      [raw = service.get()](int64_t now_us) { return raw->Wake(now_us); });
  service->loop_->Start();
  if (!service->decode()) service->StartHeartbeats();
  return service;
}

void PrefillService::StartHeartbeats() {
  const int64_t beat_us = options_.kv_lease_ms * 1000 / 6;
  parts_.data_plane->SetTimer(std::min(beat_us, kHousekeepingUs),
                              [this, beat_us, next_us = int64_t{0}](int64_t now_us) mutable {
                                kv_->Tick(now_us);
                                if (now_us < next_us) return;
                                next_us = now_us + beat_us;
                                kv_->SendHeartbeats(parts_.peers->Decodes());
                              });
}

bool PrefillService::OnLease(std::vector<LeaseEvent> events) {
  return loop_->PostCompletion([this, events = std::move(events)] {
    for (const LeaseEvent& event : events) {
      if (chain_ != nullptr) {
        chain_->OnLease(event);
      } else {
        link_->OnLease(event);
      }
    }
  });
}

void PrefillService::Tell(StageEvent event) {
  // Credits come from a peer, so they don't get the room that is kept for the ends of our own work;
  // one that is lost stalls the chain, so its epoch ends.
  if (const auto* credit = std::get_if<CreditReturned>(&event)) {
    if (!loop_->Post([this, event = *credit] { stage_->Handle(event); })) {
      BreakEpoch(credit->epoch, absl::ResourceExhaustedError("the stage's loop takes no more"));
    }
    return;
  }
  if (!loop_->PostCompletion([this, event = std::move(event)] { stage_->Handle(event); })) {
    LOG(kDebug) << "an event comes after the end";
  }
}

void PrefillService::BreakEpoch(uint64_t epoch, const absl::Status& status) {
  if (broken_epoch_.exchange(epoch) == epoch)
    return;  // Once is enough, however many messages fail.
  if (!loop_->PostCompletion([this, epoch, status] { stage_->Fail(epoch, status); })) {
    LOG(kInfo) << "activations fail after the end: " << status.message();
  }
}

PrefillService::PrefillService(const PrefillOptions& options, const Parts& parts,
                               std::unique_ptr<Front> front)
    : options_(options),
      parts_(parts),
      loop_(std::make_shared<EventLoop>(front != nullptr ? "baton-decode" : "baton-prefill")),
      front_(std::move(front)) {
  MakeCompute();
  MakeMember();
}

// What runs plans, and passes on what comes of them.
void PrefillService::MakeCompute() {
  ActivationChannel::Options activations;
  activations.executor = parts_.executor;
  activations.data_plane = parts_.data_plane;
  activations.metrics = parts_.metrics;
  const auto tell = [this](StageEvent event) { Tell(std::move(event)); };
  activations.on_event = tell;
  activations.on_error = [this](uint64_t epoch, const absl::Status& status) {
    BreakEpoch(epoch, status);
  };
  activations_ = std::make_unique<ActivationChannel>(std::move(activations));

  KvSender::Options kv;
  kv.self = options_.self;
  kv.executor = parts_.executor;
  kv.data_plane = parts_.data_plane;
  kv.metrics = parts_.metrics;
  kv.find_peer = [peers = parts_.peers](const InstanceRef& decode) { return peers->Find(decode); };
  kv.want = [peers = parts_.peers](const auto& decodes) { return peers->Want(decodes); };
  kv.on_event = tell;
  kv_ = std::make_unique<KvSender>(std::move(kv));

  computer_ = std::make_unique<PlanComputer>(parts_.executor, tell);
}

// What this process is in its chain.
void PrefillService::MakeMember() {
  const PrefillOptions& options = options_;
  const Parts& parts = parts_;
  if (!options.tensor_rank.alone()) {
    sweep_ = std::make_unique<RankSweep>(parts.executor, parts.rank_sweep);
    joiner_ = std::make_unique<links::GroupJoiner>(
        options.role, parts.executor, loop_, parts.connect_group,
        [this](Communicator& group) { return sweep_->Run(group); });
  }
  const auto measured = [this] { return sweep_ == nullptr ? parts_.measured : sweep_->cost(); };

  StageOptions stage = StageOptionsOf(options, parts.executor->kv().page_size);
  stage.kv_heads = parts.executor->config().num_key_value_heads;
  std::unique_ptr<StageTrace> trace;
  if (parts.tracer != nullptr) trace = std::make_unique<StageTrace>(parts.tracer, stage.stage);
  stage_ = std::make_unique<StageShell>(stage, activations_.get(), kv_.get(), computer_.get(),
                                        joiner_.get(), parts.metrics, std::move(trace));

  const links::ChainPlace place = PlaceOf(options, *parts.executor);
  const PlanBounds bounds = BoundsOf(options, *parts.executor, parts.constraints);
  if (decode()) {
    grants_ =
        std::make_unique<MemberGrants>(GrantLimitsOf(options, *parts.executor), &front_->inlet());
  }
  const char* const failpoint = LinkFailpoint(options.role);
  if (place.member() == 0) {
    chain_ = std::make_unique<ChainShell>(ChainShell::Options{
        place, LimitsOf(options, *parts.executor), bounds.page_count, options.activation_credits,
        loop_, stage_.get(), parts.peers, parts.metrics, parts.tracer, parts.profile, measured,
        joiner_.get(), grants_.get(), failpoint, parts.security});
  } else {
    link_ = std::make_unique<StageLink>(StageLink::Options{place, bounds, stage_.get(), parts.peers,
                                                           measured, joiner_.get(), grants_.get(),
                                                           loop_, failpoint});
  }
  if (decode()) {
    front_->Attach({chain_.get(), link_.get(), loop_, &relays_,
                    [this](std::vector<LeaseEvent> events) { return OnLease(std::move(events)); }});
  } else {
    rpc_ = std::make_unique<PrefillRpc>(PrefillRpc::Options{
        bounds, options.self.id, loop_, chain_.get(), link_.get(), parts.tracer, parts.peers});
    relays_.SetBegin(
        [rpc = rpc_.get()](const auto& call, auto& relay) { rpc->Begin(call, relay); });
  }
  parts.metrics->Set(Metric::kKvPagesCapacity, bounds.page_count);
}

PrefillService::~PrefillService() { Stop(); }

absl::Status PrefillService::Listen() {
  rpc::ServerOptions server;
  server.host = options_.host;
  server.port = options_.grpc_port;
  // A plan opens prompts of one plan's tokens and the rest of the last one, each with its pages
  // and, where the last stage looks at them, its ids.
  server.max_request_bytes = rpc::PromptMessageBytes(3 * options_.planner.max_context_tokens);
  if (parts_.security != nullptr) server.credentials = parts_.security->ForServer();
  std::vector<grpc::Service*> services;
  if (front_ != nullptr) services = front_->services();
  if (rpc_ != nullptr) services.push_back(rpc_.get());
  if (chain_ != nullptr) services.push_back(&relays_);
  if (parts_.beside != nullptr) services.push_back(parts_.beside);
  BATON_ASSIGN_OR_RETURN(server_, rpc::StartServer(server, services));
  return absl::OkStatus();
}

// Later stages learn of their chain from stage 0.
void PrefillService::OnMembers(const std::vector<worker::PeerWorker>& members) {
  if (chain_ == nullptr) return;
  {
    MutexLock lock(&mutex_);
    if (std::exchange(next_members_, members).has_value()) return;  // Taken with these.
  }
  // At most one is under way, and none may be lost: the next change may be far away.
  if (!loop_->PostCompletion([this] { TakeMembers(); })) {
    LOG(kInfo) << "members come after the end";
  }
}

void PrefillService::TakeMembers() {
  std::optional<std::vector<worker::PeerWorker>> members;
  {
    MutexLock lock(&mutex_);
    members.swap(next_members_);
  }
  chain_->OnMembers(*members);
}

// None may be lost, and there are no more under way than endpoints.
void PrefillService::OnEndpoints() {
  decode() ? front_->OnEndpoints() : kv_->OnEndpoints();
  if (!loop_->PostCompletion([this] { CheckNeighbours(); })) {
    LOG(kDebug) << "an endpoint changes after the end";
  }
}

// Also called periodically: `peers` need not report that one is lost.
void PrefillService::CheckNeighbours() {
  stage_->CheckNeighbours(
      [this](const InstanceRef& instance) { return parts_.peers->Find(instance); });
}

int64_t PrefillService::Wake(int64_t now_us) {
  last_wake_us_ = now_us;
  if (now_us - housekept_us_ >= kHousekeepingUs) {
    housekept_us_ = now_us;
    stage_->TellTimes(now_us);
    if (chain_ != nullptr && !decode()) chain_->TellCosts(now_us);
    CheckNeighbours();
  }
  int64_t next_us = chain_ != nullptr ? chain_->Wake(now_us) : link_->Wake(now_us);
  if (front_ != nullptr) next_us = std::min(next_us, front_->Wake(now_us));
  relays_.Flush();
  Publish();
  return std::min(next_us, now_us + kHousekeepingUs);
}

// Publishes what other threads read.
void PrefillService::Publish() {
  const absl::Status readiness = draining_           ? absl::UnavailableError("draining")
                                 : chain_ == nullptr ? absl::OkStatus()
                                                     : chain_->readiness();
  const bool ready = readiness.ok();
  std::vector<uint64_t> linked;
  if (ready && chain_ != nullptr) linked = chain_->linked();
  bool changed = !std::exchange(health_said_, true);
  {
    MutexLock lock(&mutex_);
    changed = changed || readiness_.ok() != ready || linked != linked_;
    linked_ = std::move(linked);
    readiness_ = readiness;
  }
  if (changed) {
    parts_.peers->OnReadyChanged();
    server_.SetServing(decode() ? kDecodeServiceName : kServiceName, ready);
  }
  v1::WorkerLoad load;
  const int page_count = parts_.executor->kv().page_count;
  int used_pages = stage_->held_pages();
  if (grants_ != nullptr) used_pages += grants_->held_pages();
  if (chain_ != nullptr) {
    const PlannerLoad planner = chain_->load();
    used_pages = planner.owned_pages;
    PublishPages(planner);
    load.set_quarantined_pages(planner.ending_pages);
    load.set_running_requests(planner.open);
    load.set_queued_requests(planner.queued);
    load.set_queued_tokens(planner.queued_tokens);
    for (const PromptProgress& prompt : planner.prompts) {
      v1::PromptProgress& told = *load.add_prompts();
      told.set_attempt_id(prompt.attempt_id);
      told.set_computed_tokens(prompt.computed_tokens);
    }
  }
  load.set_free_pages(page_count - used_pages);
  if (decode()) {
    parts_.metrics->Set(Metric::kKvPagesQuarantined, load.quarantined_pages());
  } else {
    load.clear_quarantined_pages();
  }
  parts_.metrics->Set(Metric::kRequestsRunning, load.running_requests());
  parts_.metrics->Set(Metric::kRequestsWaiting, load.queued_requests());
  parts_.metrics->Set(Metric::kKvPagesUsed, used_pages - load.quarantined_pages());
  parts_.metrics->Set(Metric::kKvUsedRatio, static_cast<double>(used_pages) / page_count);
  parts_.metrics->Set(Metric::kReady, ready ? 1 : 0);
  drain_metrics_.Update(*parts_.metrics, chain_ == nullptr ? DrainCounts() : chain_->drain_counts(),
                        draining_);
  MutexLock lock(&mutex_);
  load_ = std::move(load);
}

void PrefillService::PublishPages(const PlannerLoad& planner) {
  Metrics& metrics = *parts_.metrics;
  const auto add = [&metrics](Metric metric, uint64_t total, uint64_t& told) {
    metrics.Increment(metric, static_cast<double>(total - std::exchange(told, total)));
  };
  metrics.Set(Metric::kPrefixCachePages, planner.cached_pages);
  add(Metric::kPrefixCacheEvictedPagesTotal, planner.evicted_pages_total, told_evicted_pages_);
  add(Metric::kRetractionsTotal, planner.retractions_total, told_retractions_);
  if (decode()) {
    add(Metric::kKvReusedPagesTotal, planner.reused_pages_total, told_reused_pages_);
  } else {
    metrics.Set(Metric::kPromptsChunked, static_cast<double>(planner.prompts.size()));
  }
}

absl::Status PrefillService::Readiness() const {
  MutexLock lock(&mutex_);
  return readiness_;
}

std::vector<uint64_t> PrefillService::linked() const {
  MutexLock lock(&mutex_);
  return linked_;
}

v1::WorkerLoad PrefillService::load() const {
  MutexLock lock(&mutex_);
  return load_;
}

absl::Status PrefillService::Liveness() const {
  if (decode()) BATON_RETURN_IF_ERROR(front_->Liveness());
  const int64_t now_us = NowUs();
  if (now_us - last_wake_us_ > kLoopStuckUs) {
    return absl::InternalError(
        absl::StrCat("the loop has been stuck for ", (now_us - last_wake_us_) / 1000, " ms"));
  }
  const int64_t running_us = parts_.executor->running_since_us();
  if (running_us != 0 && now_us - running_us > kComputeStuckUs) {
    return absl::InternalError("one plan has been computing for more than ten minutes");
  }
  return absl::OkStatus();
}

void PrefillService::BeginDrain(int64_t deadline_us) {
  const bool posted = loop_->PostCompletion([this, deadline_us] {
    draining_ = true;
    if (chain_ != nullptr) chain_->BeginDrain(deadline_us);
  });
  if (!posted) {
    LOG(kDebug) << "a drain begins after the end";
  }
}

bool PrefillService::LoopAtRest() const {
  return stage_->AtRest() && (chain_ == nullptr || chain_->AtRest()) &&
         (grants_ == nullptr || grants_->AtRest()) && (front_ == nullptr || front_->AtRest());
}

bool PrefillService::AtRest() {
  return loop_->Await([this] { return LoopAtRest(); }, 0);
}

DrainCounts PrefillService::drain_counts() {
  DrainCounts counts;
  loop_->Await(
      [this, &counts] {
        if (chain_ != nullptr) counts = chain_->drain_counts();
        return true;
      },
      0);
  return counts;
}

bool PrefillService::Drain(int64_t limit_ms) {
  BeginDrain(kNeverUs);
  return loop_->Await([this] { return LoopAtRest(); }, limit_ms);
}

void PrefillService::Stop() {
  if (std::exchange(stopped_, true)) return;
  if (server_.server != nullptr) {
    const bool posted = loop_->PostCompletion([this] {
      if (chain_ != nullptr) chain_->Stop();
      if (link_ != nullptr) link_->Stop();
      relays_.Close();
    });
    if (!posted) {
      LOG(kWarning) << "the loop took no stop";
      relays_.Close();
    }
    if (chain_ != nullptr) chain_->EndCalls();  // Before the server goes: call_tracker.h says why.
    rpc::StopServer(*server_.server);
  }
  if (!decode()) parts_.data_plane->SetTimer(kHousekeepingUs, nullptr);
  computer_->Stop();
  loop_->Stop();  // Whose last tasks still speak to the joiner.
  if (joiner_ != nullptr) joiner_->Stop();
}

}  // namespace baton::prefill
