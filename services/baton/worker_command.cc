// `baton worker`: one stage of a prefill or colocated chain, or of a decode service.
#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/config/layer_split.h"
#include "common/config/mode.h"
#include "common/config/router_list.h"
#include "common/engine/connect_group.h"
#include "common/engine/connect_ranks.h"
#include "common/engine/timed/timed_profile.h"
#include "common/net/host.h"
#include "common/preflight/preflight.h"
#include "services/baton/commands.h"
#include "services/baton/process.h"
#include "services/baton/worker_runtime.h"
#include "services/decode/decode_service.h"
#include "services/prefill/prefill_service.h"
#include "services/prefill/stage/cost_sweep.h"
#include "services/worker/announce_service.h"
#include "services/worker/cluster_client.h"
#include "services/worker/core/memberships.h"

namespace baton {
namespace {

// What the C library would come to by itself once blocks of 32 MiB had been freed.
constexpr HeapBounds kHeap = {.own_mapping_bytes = 32 << 20, .kept_bytes = 64 << 20};

// The service of either role, as far as membership and probes are concerned.
struct Served {
  std::function<absl::Status()> liveness;
  std::function<bool()> ready;
  std::function<v1::WorkerLoad()> load;
  std::function<std::vector<uint64_t>()> linked;
  std::function<void(const std::vector<worker::PeerWorker>&)> on_members;
  std::function<void()> on_endpoints;
  std::function<void(const worker::ClusterClient&)> attach;  // May be null.
  DrainedService drain;
  std::function<void()> stop;
  worker::AnnounceService* announce = nullptr;  // Served on the service's port.
};

// What the options let pass the membership can hold.
static_assert(config::kMaxListedRouters == worker::kMaxRouters);

template <typename Service>
DrainedService DrainedServiceOf(Service& service) {
  return {[&service](int64_t deadline_us) { service.BeginDrain(deadline_us); },
          [&service] { return service.AtRest(); }, [&service] { return service.drain_counts(); },
          [&service] { return service.load(); }};
}

template <typename Service>
void Serve(Service& service, worker::ClusterPeers& peers, Served& served) {
  served.liveness = [&service] { return service.Liveness(); };
  served.ready = [&service] { return service.ready(); };
  served.load = [&service] { return service.load(); };
  served.linked = [&service] { return service.linked(); };
  served.on_members = [&service](const auto& members) { service.OnMembers(members); };
  served.on_endpoints = [&service] { service.OnEndpoints(); };
  served.attach = [&peers](const worker::ClusterClient& client) { peers.Attach(&client); };
  served.drain = DrainedServiceOf(service);
  served.stop = [&service, &peers] {
    service.Stop();
    peers.Attach(nullptr);
  };
}

// Registers, serves until it is told to stop or is rejected, and ends in order: new requests,
// running ones, membership, data plane.
absl::Status ServeUntilStopped(const v1::Options& options, WorkerRuntime& runtime,
                               v1::WorkerInfo self, const Served& served) {
  std::atomic<bool> rejected{false};
  std::atomic<bool> draining{false};
  std::atomic<bool> drain_asked{false};
  absl::Status rejection;  // Written once before `rejected`.
  worker::ClusterClientOptions client_options;
  BATON_ASSIGN_OR_RETURN(client_options.routers, config::ParseRouters(options.router_address()));
  client_options.security = runtime.security();
  client_options.self = std::move(self);
  client_options.heartbeat_interval_ms = options.heartbeat_interval_ms();
  client_options.data_plane = &runtime.data_plane();
  client_options.status = [&served, &draining] {
    return worker::ClusterClientOptions::Status{served.ready() && !draining, served.load(),
                                                draining, served.linked()};
  };
  client_options.on_members = served.on_members;
  client_options.on_endpoints = served.on_endpoints;
  client_options.on_drain = [&drain_asked] { drain_asked = true; };
  client_options.on_refused = [&runtime](int routers) {
    runtime.metrics().Set(Metric::kRefusingRouters, routers);
  };
  client_options.on_rejected = [&](const absl::Status& status) {
    rejection = status;
    rejected = true;
  };
  worker::ClusterClient client(std::move(client_options));
  if (served.attach) served.attach(client);
  runtime.data_plane().SetPeerErrorHandler(
      [&client](PeerId peer, const absl::Status&) { client.OnPeerFailed(peer); });
  runtime.SetProbes(served.liveness, [&client, &served, &draining] {
    if (draining) return absl::UnavailableError("draining");
    if (!client.registered()) return absl::UnavailableError(client.WhyNotRegistered());
    return served.ready() ? absl::OkStatus() : absl::UnavailableError("not wired to its peers");
  });
  client.Start();
  served.announce->Attach(&client);
  WaitForStop([&] { return rejected.load() || drain_asked.load(); });

  std::unique_ptr<EndOnSignal> impatience;
  if (!rejected) {
    impatience = EndOnSignal::WhileDraining();
    if (drain_asked) LOG(kInfo) << "stopping, as a router was asked to have it drained";
    draining = true;
    DrainWorker(options.drain_timeout_ms(), served.drain, client);
  }
  runtime.ClearProbes();
  served.stop();
  served.announce->Attach(nullptr);
  client.Stop();
  runtime.data_plane().SetPeerErrorHandler(nullptr);
  runtime.data_plane().Shutdown();
  return rejection;
}

// Set where costs are needed and no file has them; empty: they are not measured. A timed executor's
// come from its profile, and its later stages notice that the prompt was not sent.
std::optional<prefill::SweepLimits> SweepOf(const v1::Options& options, int max_context_tokens) {
  const bool fixed =
      options.chunk_policy() == ChunkRuleName(ChunkRule::kFixed) ||
      (options.chunk_policy() == ChunkRuleName(ChunkRule::kSglang) && options.pp_size() == 1);
  const bool asked = !fixed && options.chunked_prefill_size() > 0 && options.chunk_sweep_ms() > 0;
  if (!asked || !options.chunk_profile().empty() || options.executor() == "timed") {
    return std::nullopt;
  }
  return prefill::SweepLimits{.max_chunk_tokens = static_cast<int>(options.chunked_prefill_size()),
                              .max_context_tokens = max_context_tokens,
                              .budget_us = options.chunk_sweep_ms() * 1000};
}

struct Measured {
  std::optional<KnownCost> cost;
  std::optional<prefill::SweepLimits> rank_sweep;  // For several ranks, once they are connected.
};

Measured MeasureCosts(const v1::Options& options, WorkerRuntime& runtime) {
  const auto limits = SweepOf(options, runtime.max_context_tokens());
  if (!limits || !runtime.tensor_rank().alone()) return {std::nullopt, limits};
  const int64_t start_us = NowUs();
  const prefill::SweepResult result = prefill::SweepCosts(runtime.executor(), *limits);
  LOG(kInfo) << prefill::SweepText(result, NowUs() - start_us);
  return {result.cost, std::nullopt};
}

absl::Status ServeChain(const v1::Options& options, const ChunkCosts& costs,
                        const Measured& measured, ConnectGroup connect_group,
                        WorkerRuntime& runtime, int64_t start_us) {
  prefill::PrefillOptions own = prefill::SchedulingOf(options, runtime.max_context_tokens());
  own.self = {runtime.instance().instance_id(), runtime.instance().incarnation()};
  own.decodes = config::IsColocated(options);
  own.chain_id = options.chain_id();
  own.pp_rank = static_cast<int>(options.pp_rank());
  own.tensor_rank = runtime.tensor_rank();
  own.host = options.host();
  own.grpc_port = static_cast<int>(options.grpc_port());
  worker::ClusterPeers peers;
  worker::AnnounceService announce(/*welcome=*/options.router_address().empty());
  BATON_ASSIGN_OR_RETURN(const auto service,
                         prefill::PrefillService::Create(own, {&runtime.executor(),
                                                               &runtime.data_plane(),
                                                               &peers,
                                                               &runtime.metrics(),
                                                               runtime.tracer(),
                                                               &announce,
                                                               {options.chunk_profile(), costs.here,
                                                                costs.profile, !costs.keeps_file},
                                                               measured.cost,
                                                               measured.rank_sweep,
                                                               std::move(connect_group),
                                                               runtime.security(),
                                                               runtime.constraints()}));
  const std::string rank =
      own.tensor_rank.alone()
          ? ""
          : absl::StrCat("rank ", own.tensor_rank.rank, " of ", own.tensor_rank.size, " of ");
  LOG(kInfo) << rank << config::WorkerKind(options) << " stage " << own.pp_rank << " of "
             << own.pp_size << " in " << own.chain_id << ", " << runtime.Summary();
  LOG(kInfo) << "grpc " << net::JoinHostPort(own.host, service->grpc_port()) << "  metrics "
             << net::JoinHostPort(own.host, runtime.metrics_port()) << "  chunk "
             << own.chunk_tokens << " tokens, " << options.chunk_policy() << "  started after "
             << SecondsSince(start_us);
  if (costs.profile) LOG(kInfo) << "what chunks cost is read from " << costs.source;
  v1::WorkerInfo self = runtime.Describe(service->grpc_port());
  self.set_role(v1::ROLE_PREFILL);
  self.set_chain_id(own.chain_id);
  self.set_pp_rank(own.pp_rank);
  self.set_pp_size(own.pp_size);
  self.set_decodes(own.decodes);
  self.set_max_running_requests(own.max_open_requests);
  Served served;
  served.announce = &announce;
  Serve(*service, peers, served);
  return ServeUntilStopped(options, runtime, std::move(self), served);
}

absl::Status ServeDecode(const v1::Options& options, ConnectGroup connect_group,
                         WorkerRuntime& runtime, int64_t start_us) {
  decode::DecodeOptions own;
  own.self = {runtime.instance().instance_id(), runtime.instance().incarnation()};
  own.decode_id = options.decode_id();
  own.pp_rank = static_cast<int>(options.pp_rank());
  own.pp_size = static_cast<int>(options.pp_size());
  own.host = options.host();
  own.grpc_port = static_cast<int>(options.grpc_port());
  own.max_running_requests = static_cast<int>(options.max_running_requests());
  own.max_queued_requests = static_cast<int>(options.max_queued_requests());
  own.max_context_tokens = runtime.max_context_tokens();
  own.reserved_decode_tokens = static_cast<int>(options.num_reserved_decode_tokens());
  own.caches = !options.disable_radix_cache();
  own.kv_lease_ms = options.kv_lease_ms();
  worker::ClusterPeers peers;
  worker::AnnounceService announce(/*welcome=*/options.router_address().empty());
  BATON_ASSIGN_OR_RETURN(const auto service, decode::DecodeService::Create(
                                                 own, {&runtime.executor(), &runtime.data_plane(),
                                                       &peers, &runtime.metrics(), runtime.tracer(),
                                                       &announce, std::move(connect_group),
                                                       runtime.security(), runtime.constraints()}));
  const TensorRank rank = runtime.tensor_rank();
  const bool alone = rank.alone() && own.pp_size == 1;
  const std::string place = absl::StrCat(
      rank.alone() ? "" : absl::StrCat("rank ", rank.rank, " of ", rank.size, " of "),
      own.pp_size == 1 ? "" : absl::StrCat("stage ", own.pp_rank, " of ", own.pp_size, " of "),
      alone ? "" : absl::StrCat(own.decode_id, ", "));
  LOG(kInfo) << "decode service, " << place << runtime.Summary() << ", at most "
             << own.max_running_requests << " requests";
  LOG(kInfo) << "grpc " << net::JoinHostPort(own.host, service->grpc_port()) << "  metrics "
             << net::JoinHostPort(own.host, runtime.metrics_port()) << "  started after "
             << SecondsSince(start_us);
  v1::WorkerInfo self = runtime.Describe(service->grpc_port());
  self.set_role(v1::ROLE_DECODE);
  self.set_pp_rank(own.pp_rank);
  self.set_pp_size(own.pp_size);
  if (!alone) self.set_decode_id(own.decode_id);
  self.set_max_running_requests(own.max_running_requests);
  self.set_reserved_decode_tokens(own.reserved_decode_tokens);
  Served served;
  served.announce = &announce;
  Serve(*service, peers, served);
  return ServeUntilStopped(options, runtime, std::move(self), served);
}

// What the checks say that `validate` makes.
absl::StatusOr<PreflightReport> Checked(const config::ParsedOptions& options) {
  PreflightReport report = Preflight(options, ReadMachine());
  for (const Finding& finding : report.findings) {
    if (!finding.refuses()) LOG(kWarning) << FindingText(finding);
  }
  BATON_RETURN_IF_ERROR(report.status());
  return report;
}

// "prefill-1-3f0c", with its rank behind the stage where there are more of them.
std::string DefaultInstanceId(const v1::Options& options) {
  std::string id = config::WorkerKind(options);
  if (config::HasStages(options)) absl::StrAppend(&id, "-", options.pp_rank());
  if (options.tp_size() > 1) absl::StrAppend(&id, "-", options.tp_rank());
  return absl::StrCat(id, "-", RandomHex(4));
}

absl::Status Serve(const PreflightReport& checked, const std::vector<std::string>& notes) {
  const int64_t start_us = NowUs();
  v1::Options options = checked.values;
  const bool chain = !config::IsDecode(options);
  if (options.instance_id().empty()) options.set_instance_id(DefaultInstanceId(options));
  BoundHeap(kHeap);
  BATON_RETURN_IF_ERROR(PrepareProcess(options, options.instance_id(), notes));
  auto startup = EndOnSignal::WhileStarting();
  BATON_RETURN_IF_ERROR(ResolveAddresses(options, /*worker=*/true));
  // Before the weights are read: gRPC binds it when they are.
  if (options.grpc_port() != 0) {
    BATON_RETURN_IF_ERROR(net::CheckListen(options.host(), static_cast<int>(options.grpc_port())));
  }
  BATON_ASSIGN_OR_RETURN(auto security, SecureCluster(options, chain ? rpc::PeerRole::kPrefill
                                                                     : rpc::PeerRole::kDecode));
  const std::string warning = OpenListenerWarning(options.host(), security);
  if (!warning.empty()) LOG(kWarning) << warning;
  PrepareDevice(options);
  ConnectGroup connect_group;  // First, as it loads libtorch, which sets the process up.
  if (options.tp_size() > 1) {
    BATON_ASSIGN_OR_RETURN(connect_group, ConnectRanks(options.device(), options.advertise_host()));
  }
  BATON_ASSIGN_OR_RETURN(const ModelConfig model,
                         LoadPlayedModelConfig(options.model_path(), options.context_length(),
                                               options.timed_profile()));
  BATON_ASSIGN_OR_RETURN(const std::vector<LayerRange> split,
                         config::SplitLayers(model.num_hidden_layers, options.pp_size(),
                                             options.pp_layer_partition()));
  const LayerRange layers = split[static_cast<size_t>(options.pp_rank())];
  BATON_ASSIGN_OR_RETURN(const auto runtime,
                         WorkerRuntime::Create(options, layers, model, std::move(security)));
  Measured measured;
  if (chain) measured = MeasureCosts(options, *runtime);
  startup.reset();
  return chain ? ServeChain(options, checked.chunks, measured, std::move(connect_group), *runtime,
                            start_us)
               : ServeDecode(options, std::move(connect_group), *runtime, start_us);
}

}  // namespace

int RunWorkerCommand(const config::ParsedOptions& options) {
  const absl::StatusOr<PreflightReport> checked = Checked(options);
  const absl::Status status = checked.ok() ? Serve(*checked, options.notes) : checked.status();
  if (status.ok()) return kExitDone;
  std::fprintf(stderr, "baton worker: %s\n", std::string(status.message()).c_str());
  return ExitCodeOf(status);
}

}  // namespace baton
