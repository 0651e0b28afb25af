// `baton up`: a local cluster. Checks, plans, and lets the supervisor run it.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/process_input.h"
#include "common/preflight/preflight.h"
#include "services/baton/cluster_watch.h"
#include "services/baton/commands.h"
#include "services/baton/ready_text.h"
#include "services/baton/supervisor.h"
#include "services/baton/up_plan.h"

namespace baton {
namespace {

// Beyond its drain a child needs a moment to end calls and threads.
constexpr int64_t kBeyondDrainMs = 10'000;

SupervisorLimits LimitsOf(const v1::Options& options) {
  SupervisorLimits limits;
  limits.stop_timeout_us =
      (options.drain_settle_ms() + options.drain_timeout_ms() + kBeyondDrainMs) * 1000;
  limits.start_timeout_us = options.start_timeout_ms() * 1000;
  limits.permanent_exit_codes = {kExitUsage, kExitPermanent};
  return limits;
}

absl::Status Up(const config::ParsedOptions& options, const char* self) {
  const int64_t start_us = NowUs();
  // What would end the children alike is said once, before there are any.
  const PreflightReport checked = Preflight(options, ReadMachine());
  for (const Finding& finding : checked.findings) {
    if (finding.refuses()) continue;
    std::fprintf(stderr, "baton up: warning: %s\n", FindingText(finding).c_str());
  }
  BATON_RETURN_IF_ERROR(checked.status());
  // Found once for all stages, whatever the profile says later.
  config::ParsedOptions planned = options;
  planned.values.set_pp_layer_partition(checked.values.pp_layer_partition());
  BATON_ASSIGN_OR_RETURN(const UpPlan plan, PlanUp(planned, PlannedArguments(checked),
                                                   config::ProcessEnvironment(), FreePort));
  // First of all, since the threads of the watch inherit what it does to signals.
  Supervisor supervisor(self, LimitsOf(options.values));
  ClusterWatchOptions watched;
  watched.host = plan.local_host;
  watched.http_port = plan.http_port;
  watched.https = !plan.certificate.empty();
  watched.grpc_port = plan.grpc_port;
  for (const auto& [name, port] : plan.metrics_ports) watched.workers.push_back(name);
  for (const ChildSpec& child : plan.children) supervisor.Add(child);
  const ClusterWatch watch(std::move(watched));
  return supervisor.Run({[&] { return watch.ready(); }, [&] { return watch.waiting_for(); }}, [&] {
    const double seconds = static_cast<double>(NowUs() - start_us) / 1e6;
    std::fputs(ReadyText(plan, watch.workers(), options.values.served_model_name(),
                         !options.values.api_key().empty(), seconds)
                   .c_str(),
               stdout);
    std::fflush(stdout);
  });
}

}  // namespace

int RunUpCommand(const config::ParsedOptions& options, const char* self) {
  const absl::Status status = Up(options, self);
  if (status.ok()) return kExitDone;
  std::fprintf(stderr, "baton up: %s\n", std::string(status.message()).c_str());
  return ExitCodeOf(status);
}

}  // namespace baton
