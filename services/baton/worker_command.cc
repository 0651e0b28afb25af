// `baton worker`: one stage of a prefill or colocated chain, or of a decode service.
#include <atomic>
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

// What the options let pass the membership can hold.
static_assert(config::kMaxListedRouters == worker::kMaxRouters);

// Registers, serves until it is told to stop or is rejected, and ends in order: new requests,
// running ones, membership, data plane.
absl::Status ServeUntilStopped(const v1::Options& options, WorkerRuntime& runtime,
                               v1::WorkerInfo self, prefill::PrefillService& service,
                               worker::ClusterPeers& peers, worker::AnnounceService& announce) {
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
  client_options.status = [&service, &draining] {
    const absl::Status readiness =
        draining ? absl::UnavailableError("draining") : service.Readiness();
    return worker::ClusterClientOptions::Status{readiness, service.load(), draining,
                                                service.linked()};
  };
  client_options.on_members = [&service](const auto& members) { service.OnMembers(members); };
  client_options.on_endpoints = [&service] { service.OnEndpoints(); };
  client_options.on_drain = [&drain_asked] { drain_asked = true; };
  client_options.on_refused = [&runtime](int routers) {
    runtime.metrics().Set(Metric::kRefusingRouters, routers);
  };
  client_options.on_rejected = [&](const absl::Status& status) {
    rejection = status;
    rejected = true;
  };
  worker::ClusterClient client(std::move(client_options));
  peers.Attach(&client);
  runtime.data_plane().SetPeerErrorHandler(
      [&client](PeerId peer, const absl::Status&) { client.OnPeerFailed(peer); });
  runtime.SetProbes([&service] { return service.Liveness(); },
                    [&client, &service, &draining] {
                      if (draining) return absl::UnavailableError("draining");
                      if (!client.registered())
                        return absl::UnavailableError(client.WhyNotRegistered());
                      return service.Readiness();
                    });
  client.Start();
  announce.Attach(&client);
  WaitForStop([&] { return rejected.load() || drain_asked.load(); });

  std::unique_ptr<EndOnSignal> impatience;
  if (!rejected) {
    impatience = EndOnSignal::WhileDraining();
    if (drain_asked) LOG(kInfo) << "stopping, as a router was asked to have it drained";
    draining = true;
    DrainWorker(options.drain_timeout_ms(), service, client);
  }
  runtime.ClearProbes();
  service.Stop();
  peers.Attach(nullptr);
  announce.Attach(nullptr);
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

std::string RankText(TensorRank rank) {
  return rank.alone() ? "" : absl::StrCat("rank ", rank.rank, " of ", rank.size, " of ");
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

// What the log says when the service listens.
struct Greeting {
  std::string what;
  std::string chunks;
  std::string costs;  // Where they are from; may be empty.
};

Greeting GreetingOfChain(const v1::Options& options, const prefill::PrefillOptions& own,
                         const ChunkCosts& costs, const WorkerRuntime& runtime) {
  return {
      absl::StrCat(RankText(own.tensor_rank), config::WorkerKind(options), " stage ", own.pp_rank,
                   " of ", own.pp_size, " in ", own.chain_id, ", ", runtime.Summary()),
      absl::StrCat("  chunk ", own.planner.chunk_tokens, " tokens, ", options.chunk_policy()),
      costs.profile ? costs.source : ""};
}

// Registers by a decode id.
bool IsMemberOfDecode(const prefill::PrefillOptions& own) {
  return !own.tensor_rank.alone() || own.pp_size > 1;
}

Greeting GreetingOfDecode(const prefill::PrefillOptions& own, const WorkerRuntime& runtime) {
  const std::string stage =
      own.pp_size == 1 ? "" : absl::StrCat("stage ", own.pp_rank, " of ", own.pp_size, " of ");
  const std::string service = IsMemberOfDecode(own) ? absl::StrCat(own.chain_id, ", ") : "";
  return {absl::StrCat("decode service, ", RankText(own.tensor_rank), stage, service,
                       runtime.Summary(), ", at most ", own.planner.max_open_requests, " requests"),
          "", ""};
}

v1::WorkerInfo Describe(const prefill::PrefillOptions& own, const WorkerRuntime& runtime,
                        int grpc_port) {
  v1::WorkerInfo self = runtime.Describe(grpc_port);
  self.set_pp_rank(own.pp_rank);
  self.set_pp_size(own.pp_size);
  self.set_max_running_requests(own.planner.max_open_requests);
  if (own.role == Role::kDecode) {
    self.set_role(v1::ROLE_DECODE);
    if (IsMemberOfDecode(own)) self.set_decode_id(own.chain_id);
    self.set_reserved_decode_tokens(own.planner.reserved_decode_tokens);
  } else {
    self.set_role(v1::ROLE_PREFILL);
    self.set_chain_id(own.chain_id);
    self.set_decodes(own.planner.decodes);
  }
  return self;
}

// `parts`: those that are of one role only, or that have been made already.
absl::Status ServeAs(const v1::Options& options, const prefill::PrefillOptions& own,
                     prefill::PrefillService::Parts parts, const Greeting& greeting,
                     WorkerRuntime& runtime, int64_t start_us) {
  worker::ClusterPeers peers;
  worker::AnnounceService announce(/*welcome=*/options.router_address().empty());
  parts.executor = &runtime.executor();
  parts.data_plane = &runtime.data_plane();
  parts.peers = &peers;
  parts.metrics = &runtime.metrics();
  parts.tracer = runtime.tracer();
  parts.beside = &announce;
  parts.security = runtime.security();
  parts.constraints = runtime.constraints();
  BATON_ASSIGN_OR_RETURN(const auto service, own.role == Role::kDecode
                                                 ? decode::CreateDecodeService(own, parts)
                                                 : prefill::PrefillService::Create(own, parts));
  LOG(kInfo) << greeting.what;
  LOG(kInfo) << "grpc " << net::JoinHostPort(own.host, service->grpc_port()) << "  metrics "
             << net::JoinHostPort(own.host, runtime.metrics_port()) << greeting.chunks
             << "  started after " << SecondsSince(start_us);
  if (!greeting.costs.empty()) LOG(kInfo) << "what chunks cost is read from " << greeting.costs;
  return ServeUntilStopped(options, runtime, Describe(own, runtime, service->grpc_port()), *service,
                           peers, announce);
}

absl::Status ServeRole(const v1::Options& options, const ChunkCosts& costs,
                       const Measured& measured, ConnectGroup connect_group, WorkerRuntime& runtime,
                       int64_t start_us) {
  const bool decode = config::IsDecode(options);
  prefill::PrefillOptions own =
      decode ? prefill::SchedulingOfDecode(options, runtime.max_context_tokens())
             : prefill::SchedulingOf(options, runtime.max_context_tokens());
  own.self = {runtime.instance().instance_id(), runtime.instance().incarnation()};
  own.chain_id = decode ? options.decode_id() : options.chain_id();
  own.planner.decodes = config::IsColocated(options);
  own.pp_rank = static_cast<int>(options.pp_rank());
  own.tensor_rank = runtime.tensor_rank();
  own.host = options.host();
  own.grpc_port = static_cast<int>(options.grpc_port());
  prefill::PrefillService::Parts parts;
  parts.connect_group = std::move(connect_group);
  if (decode) {
    return ServeAs(options, own, std::move(parts), GreetingOfDecode(own, runtime), runtime,
                   start_us);
  }
  parts.profile = {options.chunk_profile(), costs.here, costs.profile, !costs.keeps_file};
  parts.measured = measured.cost;
  parts.rank_sweep = measured.rank_sweep;
  return ServeAs(options, own, std::move(parts), GreetingOfChain(options, own, costs, runtime),
                 runtime, start_us);
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
  return ServeRole(options, checked.chunks, measured, std::move(connect_group), *runtime, start_us);
}

}  // namespace

absl::Status RunWorkerCommand(const config::ParsedOptions& options) {
  BATON_ASSIGN_OR_RETURN(const PreflightReport checked, Checked(options));
  return Serve(checked, options.notes);
}

}  // namespace baton
