// `baton worker --nnodes N --node-rank R`: one node's share of a prefill chain or a decode service.
// Checks, plans, and lets the supervisor run a worker for each of its ranks.
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/process_input.h"
#include "common/preflight/preflight.h"
#include "services/baton/child_plan.h"
#include "services/baton/commands.h"
#include "services/baton/node_plan.h"
#include "services/baton/node_watch.h"
#include "services/baton/supervisor.h"

namespace baton {
namespace {

absl::Status Serve(const config::ParsedOptions& options, const char* self) {
  const int64_t start_us = NowUs();
  BATON_ASSIGN_OR_RETURN(const PreflightReport checked, CheckedForChildren(options));
  const config::ParsedOptions planned = PlannedOptions(options, checked);
  BATON_ASSIGN_OR_RETURN(const NodePlan plan, PlanNode(planned, PlannedArguments(checked),
                                                       config::ProcessEnvironment(), FreePort));
  BATON_RETURN_IF_ERROR(CheckListen(plan.ports));
  BATON_RETURN_IF_ERROR(QueueProcessOutput(options.values, "node"));
  // Before the watch, whose thread inherits what it does to signals.
  SupervisorLimits limits = LimitsOf(options.values);
  // When other nodes come is not this one's to judge: from here on its ranks wait, and one that
  // dies is started again.
  limits.until = "all of the node's ranks had loaded";
  Supervisor supervisor(self, std::move(limits));
  for (const ChildSpec& child : plan.children) supervisor.Add(child);
  NodeWatch watch({plan.probe_host, plan.metrics_ports, plan.group});
  bool told = false;
  const auto news = [&] {
    const bool ready = watch.ready();
    std::vector<std::string> lines = watch.TakeNews();
    if (ready && !std::exchange(told, true)) {
      const double seconds = static_cast<double>(NowUs() - start_us) / 1e6;
      lines.push_back(NodeReadyText(options.values, plan, seconds));
    }
    return lines;
  };
  const StartWatch start = {[&] { return watch.started(); }, [&] { return watch.waiting_for(); },
                            news,
                            [&](const std::string& name, uint64_t incarnation) {
                              watch.OnIncarnation(name, incarnation);
                            }};
  return supervisor.Run(start, [] {});
}

}  // namespace

int RunNodeCommand(const config::ParsedOptions& options, const char* self) {
  const absl::Status status = Serve(options, self);
  if (status.ok()) return kExitDone;
  std::fprintf(stderr, "baton worker: %s\n", std::string(status.message()).c_str());
  return ExitCodeOf(status);
}

}  // namespace baton
