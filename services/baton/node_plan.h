// The processes of one node of a prefill chain or a decode service (`baton worker --nnodes`): which
// of its ranks they are, their names, arguments and ports. Starts nothing.
#ifndef SERVICES_BATON_NODE_PLAN_H_
#define SERVICES_BATON_NODE_PLAN_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/node_share.h"
#include "common/config/options.h"
#include "services/baton/child_plan.h"
#include "services/baton/start_progress.h"

namespace baton {

struct NodePlan {
  std::string probe_host;  // Numeric: where this machine's processes reach the workers' probes.
  std::vector<config::StageRank> places;
  std::vector<ChildSpec> children;           // One per place, in the same order.
  std::map<std::string, int> metrics_ports;  // By worker; kept over its restarts.
  std::vector<PlannedPort> ports;            // Everything that the workers are told to listen on.
  StartingGroup group;                       // All of them.
};

// Asks `free_port` for every port that the options leave open. `options` are a node's
// (config::IsNode). `for_workers`: arguments of each worker that overrule the options.
// `environment`: of this process. UNAVAILABLE if there is no way to --dist-init-addr yet.
absl::StatusOr<NodePlan> PlanNode(const config::ParsedOptions& options,
                                  const std::vector<std::string>& for_workers,
                                  const std::vector<std::string>& environment,
                                  const FindFreePort& free_port);

// "node 1 of 2: stage 1 rank 0 to stage 1 rank 1 of c, 2 stages of 2 ranks"; of a decode service
// "node 1 of 2: rank 2 to rank 3 of decode service d, 4 ranks".
std::string NodeText(const v1::Options& options);

// What is printed when all of the node's ranks are ready: a line that programs can look for, and a
// table of the processes. The first rank of a chain or a decode service is ready when all of that
// stands, which its node's line says.
std::string NodeReadyText(const v1::Options& options, const NodePlan& plan, double seconds);

}  // namespace baton

#endif  // SERVICES_BATON_NODE_PLAN_H_
