// `baton up` and `baton serve`: a cluster on this machine, of `serve` a colocated one; and `baton
// worker --nnodes N --node-rank R`: one node's share of a prefill chain or a decode service.
// Checks, plans, and lets the supervisor run the processes.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/node_share.h"
#include "common/config/process_input.h"
#include "common/engine/torch_check.h"
#include "common/preflight/preflight.h"
#include "services/baton/commands.h"
#include "services/baton/launch_plan.h"
#include "services/baton/launch_text.h"
#include "services/baton/start_probes.h"
#include "services/baton/start_watch.h"
#include "services/baton/supervisor.h"

namespace baton {
namespace {

// Beyond its drain a child needs a moment to end calls and threads.
constexpr int64_t kBeyondDrainMs = 10'000;

// What would end the children alike is said once, before there are any: what of the command line
// means something else here and warnings on standard error, and what refuses.
absl::StatusOr<PreflightReport> CheckForChildren(const config::ParsedOptions& options) {
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

SupervisorLimits LimitsOf(const v1::Options& options) {
  SupervisorLimits limits;
  limits.stop_timeout_us =
      (options.drain_settle_ms() + options.drain_timeout_ms() + kBeyondDrainMs) * 1000;
  limits.permanent_exit_codes = {kExitUsage, kExitPermanent};
  if (config::IsNode(options)) {
    // When other nodes come is not this one's to judge: from here on its ranks wait, and one that
    // dies is started again.
    limits.until = "all of the node's ranks had loaded";
  } else {
    limits.start_timeout_us = options.start_timeout_ms() * 1000;
    limits.leaders = 1;  // No worker is to register at a router that has the port of this one.
  }
  return limits;
}

}  // namespace

Machine MachineForChecks() {
  Machine machine = ReadMachine();
  machine.check_torch = [] { return CheckTorch(); };
  return machine;
}

absl::Status RunLaunchCommand(const config::ParsedOptions& options, const char* self) {
  const int64_t start_us = NowUs();
  const v1::Options& values = options.values;
  const bool node = config::IsNode(values);
  BATON_ASSIGN_OR_RETURN(const PreflightReport checked, CheckForChildren(options));
  BATON_ASSIGN_OR_RETURN(const LaunchPlan plan,
                         PlanLaunch(PlannedOptions(options, checked), PlannedArguments(checked),
                                    config::ProcessEnvironment(), FreePort));
  BATON_RETURN_IF_ERROR(CheckListen(plan.ports));
  BATON_RETURN_IF_ERROR(
      QueueProcessOutput(values, node ? "node" : config::CommandName(options.command)));
  // Before the watch, whose threads inherit what it does to signals.
  Supervisor supervisor(self, LimitsOf(values));
  for (const ChildSpec& child : plan.children) supervisor.Add(child);
  StartSubject subject = {node ? "node starting" : "cluster starting",
                          node ? "loaded" : "registered", plan.groups};
  LookAtStart look;
  if (node) {
    look = LookAtNode(plan);
  } else {
    BATON_ASSIGN_OR_RETURN(auto security, SecureCluster(values, rpc::PeerRole::kOperator));
    look = LookAtCluster(plan, std::move(security));
  }
  StartWatch watch(std::move(subject), std::move(look), [&](const StartView& ready) {
    const double seconds = static_cast<double>(NowUs() - start_us) / 1e6;
    return node ? NodeReadyText(values, plan, seconds)
                : ClusterReadyText(values, plan, ready.workers, seconds);
  });
  return supervisor.Run(watch.ForSupervisor());
}

}  // namespace baton
