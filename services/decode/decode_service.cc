#include "services/decode/decode_service.h"

#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/server.h"

namespace baton::decode {
namespace {

constexpr int64_t kHousekeepingUs = 250'000;
constexpr int64_t kLoopStuckUs = 5'000'000;
constexpr int64_t kStepStuckUs = 600'000'000;
constexpr char kServiceName[] = "baton.v1.Decode";

absl::Status CheckOptions(const DecodeOptions& options, const Executor& executor) {
  if (!executor.first_stage() || !executor.last_stage()) {
    return InvalidField("disaggregation_mode", "a decode service needs all layers of the model");
  }
  if (executor.tensor_rank().rank != 0) {
    return InvalidField("tp_rank", "rank 0 is the service, the others are its followers");
  }
  if (options.max_running_requests < 1) {
    return InvalidField("max_running_requests", "must be positive");
  }
  if (options.reserved_decode_tokens < 1) {
    return InvalidField("num_reserved_decode_tokens", "must be positive");
  }
  if (options.max_queued_requests < 0) {
    return InvalidField("max_queued_requests", "must not be negative");
  }
  if (options.max_context_tokens < 2 ||
      options.max_context_tokens > executor.config().max_position_embeddings) {
    return InvalidField(
        "context_length",
        absl::StrCat(options.max_context_tokens, " is not in [2, ",
                     executor.config().max_position_embeddings, "], the model's longest context"));
  }
  return absl::OkStatus();
}

DecodeLimits LimitsOf(const DecodeOptions& options, const Executor& executor) {
  const KvGeometry& kv = executor.kv();
  DecodeLimits limits;
  limits.self = options.self;
  limits.layout = kv.layout();
  limits.page_count = kv.page_count;
  limits.max_running_requests = options.max_running_requests;
  limits.max_queued_requests = options.max_queued_requests;
  limits.max_context_tokens = options.max_context_tokens;
  limits.vocab_size = executor.config().vocab_size;
  limits.caches = options.caches;
  limits.reserved_decode_tokens = options.reserved_decode_tokens;
  limits.stream_lease_us = options.kv_lease_ms * 1000;
  limits.ranks = executor.tensor_rank().size;
  limits.kv_heads = executor.config().num_key_value_heads;
  return limits;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeService>> DecodeService::Create(const DecodeOptions& options,
                                                                     const Parts& parts) {
  BATON_RETURN_IF_ERROR(CheckOptions(options, *parts.executor));
  std::unique_ptr<DecodeService> service(new DecodeService(options, parts));
  service->loop_->SetWakeHandler(
      [raw = service.get()](int64_t now_us) { return raw->Wake(now_us); });
  service->last_wake_us_ = NowUs();
  BATON_RETURN_IF_ERROR(service->Listen());
  service->loop_->Start();
  BATON_RETURN_IF_ERROR(service->kv_->Start());
  return service;
}

DecodeService::DecodeService(const DecodeOptions& options, const Parts& parts)
    : options_(options), parts_(parts), loop_(std::make_shared<EventLoop>("baton-decode")) {
  const DecodeLimits limits = LimitsOf(options, *parts.executor);
  KvReceiver::Options kv;
  kv.table.self = options.self;
  kv.table.layout = limits.layout;
  kv.table.rank = parts.executor->tensor_rank();
  kv.table.model_kv_heads = limits.kv_heads;
  kv.table.slots = static_cast<uint32_t>(limits.max_running_requests);
  kv.table.writer_lease_us = options.kv_lease_ms * 1000;
  kv.executor = parts.executor;
  kv.data_plane = parts.data_plane;
  kv.metrics = parts.metrics;
  kv.find_peer = [peers = parts.peers](const InstanceRef& writer) { return peers->Find(writer); };
  kv.deliver = [this](std::vector<LeaseEvent> events) {
    return loop_->PostCompletion(
        [this, events = std::move(events)] { shell_->OnLeaseEvents(events); });
  };
  kv_ = std::make_unique<KvReceiver>(std::move(kv));
  runner_ = std::make_unique<StepRunner>(
      parts.executor, [this](StepFinished finished, int64_t compute_us) {
        const bool told =
            loop_->PostCompletion([this, finished = std::move(finished), compute_us]() mutable {
              if (ranks_ != nullptr) finished.status = ranks_->Blame(finished.status);
              shell_->OnStepFinished(finished, compute_us);
            });
        if (!told) {
          LOG(kDebug) << "a step ends after the end";
        }
      });
  if (limits.ranks > 1) {
    ranks_ = std::make_unique<RankLinks>(RankLinks::Options{
        PlaceOf(options.self, options.decode_id, *parts.executor), parts.executor, loop_,
        parts.connect_group, [this] { return shell_->may_join(); },
        [this](Event event) { shell_->OnRanks(std::move(event)); }, parts.security});
  }
  shell_ = std::make_unique<DecodeShell>(
      DecodeShell::Options{limits, kv_.get(), runner_.get(), ranks_.get(), parts.metrics,
                           [this](auto task) { return loop_->PostCompletion(std::move(task)); }});
  rpc_ = std::make_unique<DecodeRpc>(
      DecodeRpc::Options{options.self.id, limits.vocab_size, limits.max_context_tokens,
                         parts.executor->config().eos_token_ids, parts.constraints, loop_.get(),
                         shell_.get(), parts.tracer});
  parts.metrics->Set(Metric::kKvPagesCapacity, limits.page_count);
}

DecodeService::~DecodeService() { Stop(); }

absl::Status DecodeService::Listen() {
  rpc::ServerOptions server;
  server.host = options_.host;
  server.port = options_.grpc_port;
  server.max_request_bytes = rpc::PromptMessageBytes(options_.max_context_tokens);
  if (parts_.security != nullptr) server.credentials = parts_.security->ForServer();
  std::vector<grpc::Service*> services{rpc_.get()};
  if (parts_.beside != nullptr) services.push_back(parts_.beside);
  BATON_ASSIGN_OR_RETURN(auto running, rpc::StartServer(server, services));
  server_ = std::move(running.server);
  grpc_port_ = running.port;
  return absl::OkStatus();
}

int64_t DecodeService::Wake(int64_t now_us) {
  last_wake_us_ = now_us;
  int64_t next_us = shell_->Wake(now_us);
  if (ranks_ != nullptr) next_us = std::min(next_us, ranks_->Wake(now_us));
  Publish();
  return std::min(next_us, now_us + kHousekeepingUs);
}

// Publishes what other threads read.
void DecodeService::Publish() {
  const bool ready = !shell_->draining() && shell_->joined();
  if (ready_.exchange(ready) != ready || !std::exchange(health_said_, true)) {
    parts_.peers->OnReadyChanged();
    server_->GetHealthCheckService()->SetServingStatus(kServiceName, ready);
  }
  const DecodeLoad load = shell_->load();
  const double pages = parts_.executor->kv().page_count;
  Metrics& metrics = *parts_.metrics;
  metrics.Set(Metric::kReady, ready ? 1 : 0);
  drain_metrics_.Update(metrics, shell_->drain_counts(), shell_->draining());
  metrics.Set(Metric::kRequestsRunning, load.running + load.reserved);
  metrics.Set(Metric::kRequestsWaiting, load.waiting);
  metrics.Set(Metric::kKvPagesUsed, load.owned_pages);
  metrics.Set(Metric::kKvPagesQuarantined, load.quarantined_pages);
  metrics.Set(Metric::kPrefixCachePages, load.cached_pages);
  const uint64_t evicted = load.evicted_pages_total;
  metrics.Increment(Metric::kPrefixCacheEvictedPagesTotal,
                    static_cast<double>(evicted - std::exchange(told_evicted_pages_, evicted)));
  const uint64_t reused = load.reused_pages_total;
  metrics.Increment(Metric::kKvReusedPagesTotal,
                    static_cast<double>(reused - std::exchange(told_reused_pages_, reused)));
  const uint64_t retracted = load.retractions_total;
  metrics.Increment(Metric::kRetractionsTotal,
                    static_cast<double>(retracted - std::exchange(told_retractions_, retracted)));
  metrics.Set(Metric::kKvUsedRatio, (load.owned_pages + load.quarantined_pages) / pages);
  MutexLock lock(&mutex_);
  load_.set_running_requests(load.running + load.reserved);
  load_.set_queued_requests(load.waiting);
  load_.set_free_pages(load.free_pages);
  load_.set_quarantined_pages(load.quarantined_pages);
}

v1::WorkerLoad DecodeService::load() const {
  MutexLock lock(&mutex_);
  return load_;
}

absl::Status LivenessOf(int64_t now_us, int64_t loop_us, int64_t data_thread_us,
                        const Executor& executor) {
  const auto stuck = [now_us](const char* what, int64_t since_us, int64_t limit_us) {
    if (now_us - since_us <= limit_us) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat(what, " has made no progress for ", (now_us - since_us) / 1000, " ms"));
  };
  BATON_RETURN_IF_ERROR(stuck("the loop", loop_us, kLoopStuckUs));
  BATON_RETURN_IF_ERROR(stuck("the data thread", data_thread_us, kLoopStuckUs));
  const int64_t running_us = executor.running_since_us();
  if (running_us == 0) return absl::OkStatus();
  return stuck("the decode step", running_us, kStepStuckUs);
}

absl::Status DecodeService::Liveness() const {
  return LivenessOf(NowUs(), last_wake_us_, kv_->last_tick_us(), *parts_.executor);
}

void DecodeService::OnView(const std::vector<worker::PeerWorker>& workers) {
  if (ranks_ == nullptr) return;
  {
    MutexLock lock(&mutex_);
    if (std::exchange(next_view_, workers).has_value()) return;  // Will be taken with this one.
  }
  // At most one is under way, and none may be lost: the next change of the view may be far away.
  const bool posted = loop_->PostCompletion([this] {
    std::optional<std::vector<worker::PeerWorker>> view;
    {
      MutexLock lock(&mutex_);
      view.swap(next_view_);
    }
    ranks_->OnView(*view);
  });
  if (!posted) {
    LOG(kInfo) << "a view comes after the end";
  }
}

void DecodeService::BeginDrain(int64_t deadline_us) {
  if (!loop_->PostCompletion([this, deadline_us] { shell_->BeginDrain(deadline_us); })) {
    LOG(kDebug) << "a drain begins after the end";
  }
}

bool DecodeService::AtRest() {
  return loop_->Await([this] { return shell_->AtRest(); }, 0);
}

DrainCounts DecodeService::drain_counts() {
  DrainCounts counts;
  loop_->Await(
      [this, &counts] {
        counts = shell_->drain_counts();
        return true;
      },
      0);
  return counts;
}

bool DecodeService::Drain(int64_t limit_ms) {
  BeginDrain(kNeverUs);
  return loop_->Await([this] { return shell_->AtRest(); }, limit_ms);
}

void DecodeService::Stop() {
  if (std::exchange(stopped_, true)) return;
  const bool posted = loop_->PostCompletion([this] {
    shell_->BeginDrain(0);
    if (ranks_ != nullptr) ranks_->Stop();
  });
  if (!posted) {
    LOG(kWarning) << "the loop took no stop";
  }
  if (ranks_ != nullptr) ranks_->EndCalls();  // Before the server goes: call_tracker.h says why.
  if (server_ != nullptr) {
    rpc::StopServer(*server_);
  }
  runner_->Stop();
  loop_->Stop();
}

}  // namespace baton::decode
