// `baton router`: the router service with its two fronts.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/net/host.h"
#include "common/preflight/preflight.h"
#include "services/baton/child_pipes.h"
#include "services/baton/commands.h"
#include "services/baton/process.h"
#include "services/router/discovery/kubernetes_discovery.h"
#include "services/router/router_service.h"

namespace baton {
namespace {

// Prompts of many MiB pass from thread to thread, and the last one to hold them frees them. By
// default the C library takes the first freed block's size, up to 32 MiB, as a sign that later ones
// belong in its heaps, where they stay with this process. Blocks mapped on their own are given back
// when they are freed, by any thread.
constexpr HeapBounds kHeap = {.own_mapping_bytes = 1 << 20, .kept_bytes = 8 << 20};

// Null: workers know where the router is.
absl::StatusOr<std::unique_ptr<router::KubernetesDiscovery>> FindWorkers(
    const v1::Options& options, int cluster_port,
    std::shared_ptr<const rpc::ClusterSecurity> security) {
  if (options.service_discovery() != "kubernetes") return nullptr;
  auto discovery = router::KubernetesDiscovery::Start(
      {.account_dir = options.service_discovery_account(),
       .name_space = options.service_discovery_namespace(),
       .selector = options.service_discovery_selector(),
       .worker_port = static_cast<int>(options.service_discovery_port()),
       .cluster_port = cluster_port,
       .host = options.advertise_host(),
       .security = std::move(security)});
  if (discovery.ok()) return discovery;
  return InvalidField("service_discovery", std::string(discovery.status().message()));
}

absl::Status Serve(v1::Options options, const std::vector<std::string>& notes) {
  const int64_t start_us = NowUs();
  BoundHeap(kHeap);
  BATON_RETURN_IF_ERROR(PrepareProcess(options, "router", notes));
  auto startup = EndOnSignal::WhileStarting();
  BATON_RETURN_IF_ERROR(ResolveAddresses(options, /*worker=*/false));
  BATON_ASSIGN_OR_RETURN(const auto security, SecureCluster(options, rpc::PeerRole::kRouter));
  const std::string warning = OpenListenerWarning(options.cluster_host(), security);
  if (!warning.empty()) LOG(kWarning) << warning;
  BATON_ASSIGN_OR_RETURN(const auto service, router::RouterService::FromOptions(options, security));
  ReportListening(service->incarnation());
  const v1::GetModelInfoResponse& model = service->gateway().model_info();
  LOG(kInfo) << "model " << model.served_model_name() << " (" << model.model_type() << ", context "
             << model.max_context_tokens() << " tokens, vocabulary " << model.vocab_size() << ")";
  LOG(kInfo) << (options.ssl_certfile().empty() ? "http " : "https ")
             << net::JoinHostPort(options.host(), service->http_port()) << "  grpc "
             << net::JoinHostPort(options.host(), service->grpc_port()) << "  workers "
             << net::JoinHostPort(options.cluster_host(), service->cluster_port()) << "  policy "
             << options.load_balance_policy() << "  ready for workers after "
             << SecondsSince(start_us);

  BATON_ASSIGN_OR_RETURN(auto discovery, FindWorkers(options, service->cluster_port(), security));
  startup.reset();
  WaitForStop([] { return false; });
  const auto impatience = EndOnSignal::WhileDraining();
  service->Drain(options.drain_settle_ms(), options.drain_timeout_ms());
  discovery.reset();  // Those who have joined stay members until the end.
  service->Stop(0);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunRouterCommand(const config::ParsedOptions& options) {
  BATON_RETURN_IF_ERROR(Preflight(options, ReadMachine()).status());
  return Serve(options.values, options.notes);
}

}  // namespace baton
