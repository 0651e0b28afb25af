// `baton up` and `baton serve`: a local cluster, of `serve` a colocated one. Checks, plans, and
// lets the supervisor run it.
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/process_input.h"
#include "common/engine/torch_check.h"
#include "common/preflight/preflight.h"
#include "services/baton/child_plan.h"
#include "services/baton/cluster_watch.h"
#include "services/baton/commands.h"
#include "services/baton/secure_cluster.h"
#include "services/baton/supervisor.h"
#include "services/baton/up_plan.h"

namespace baton {
namespace {

absl::Status Up(const config::ParsedOptions& options, const char* self) {
  const int64_t start_us = NowUs();
  BATON_ASSIGN_OR_RETURN(const PreflightReport checked, CheckedForChildren(options));
  const config::ParsedOptions planned = PlannedOptions(options, checked);
  BATON_ASSIGN_OR_RETURN(const UpPlan plan, PlanUp(planned, PlannedArguments(checked),
                                                   config::ProcessEnvironment(), FreePort));
  BATON_RETURN_IF_ERROR(CheckListen(plan.ports));
  BATON_RETURN_IF_ERROR(QueueProcessOutput(options.values, config::CommandName(options.command)));
  // First of all, since the threads of the watch inherit what it does to signals.
  SupervisorLimits limits = LimitsOf(options.values);
  limits.start_timeout_us = options.values.start_timeout_ms() * 1000;
  limits.leaders = 1;  // No worker is to register at a router that has the port of this one.
  Supervisor supervisor(self, std::move(limits));
  ClusterWatchOptions watched;
  watched.host = plan.local_host;
  watched.http_port = plan.http_port;
  watched.https = !plan.certificate.empty();
  watched.cluster_host = plan.cluster_host;
  watched.cluster_port = plan.cluster_port;
  BATON_ASSIGN_OR_RETURN(watched.security, SecureCluster(options.values, rpc::PeerRole::kOperator));
  watched.groups = plan.groups;
  for (const ChildSpec& child : plan.children) supervisor.Add(child);
  ClusterWatch watch(std::move(watched));
  const StartWatch start = {[&] { return watch.ready(); }, [&] { return watch.waiting_for(); },
                            [&] { return watch.TakeNews(); },
                            [&](const std::string& name, uint64_t incarnation) {
                              watch.OnIncarnation(name, incarnation);
                            }};
  return supervisor.Run(start, [&] {
    const double seconds = static_cast<double>(NowUs() - start_us) / 1e6;
    std::fputs(
        ReadyText(plan, watch.workers(), options.values.served_model_name(),
                  !options.values.api_key().empty() || !options.values.api_key_file().empty(),
                  seconds)
            .c_str(),
        stdout);
    std::fflush(stdout);
  });
}

}  // namespace

Machine MachineForChecks() {
  Machine machine = ReadMachine();
  machine.check_torch = [] { return CheckTorch(); };
  return machine;
}

absl::StatusOr<PreflightReport> CheckedForChildren(const config::ParsedOptions& options) {
  PreflightReport report = Preflight(options, MachineForChecks());
  for (const std::string& note : options.notes) {
    std::fprintf(stderr, "baton %s: %s\n", config::CommandName(options.command), note.c_str());
  }
  for (const Finding& finding : report.findings) {
    if (finding.refuses()) continue;
    std::fprintf(stderr, "baton %s: warning: %s\n", config::CommandName(options.command),
                 FindingText(finding).c_str());
  }
  BATON_RETURN_IF_ERROR(report.status());
  return report;
}

int RunUpCommand(const config::ParsedOptions& options, const char* self) {
  const absl::Status status = Up(options, self);
  if (status.ok()) return kExitDone;
  std::fprintf(stderr, "baton %s: %s\n", config::CommandName(options.command),
               std::string(status.message()).c_str());
  return ExitCodeOf(status);
}

}  // namespace baton
