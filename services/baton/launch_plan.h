// The processes that a cluster on this machine (`baton up`, `baton serve`) or one node of a chain
// or of a decode service (`baton worker --nnodes`) consists of: their names, arguments, ports, and
// the addresses under which they are found. Starts nothing.
#ifndef SERVICES_BATON_LAUNCH_PLAN_H_
#define SERVICES_BATON_LAUNCH_PLAN_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/node_share.h"
#include "common/config/options.h"
#include "services/baton/start_watch.h"
#include "services/baton/supervisor.h"

namespace baton {

// A port of `host` (numeric) that is free now, outside the kernel's ephemeral range: so none of the
// cluster's own connections takes it before its owner listens, or while its owner restarts. Other
// processes of this user that choose ports leave it alone until this one ends. UNAVAILABLE if there
// is none.
absl::StatusOr<int> FreePort(const std::string& host);

using FindFreePort = std::function<absl::StatusOr<int>(const std::string& host)>;

struct PlannedPort {
  std::string host;    // Numeric.
  std::string option;  // That it comes from.
  int port = 0;
};

// UNAVAILABLE, naming the option, if another process has one of them. Checked before any process is
// started: that one would fail later, or take the other's answers for its own cluster's.
absl::Status CheckListen(const std::vector<PlannedPort>& ports);

// The router's name among the children.
inline constexpr char kRouterName[] = "router";

// A cluster's router, as this machine's processes find it.
struct PlannedRouter {
  int http_port = 0;
  std::string certificate;  // For its HTTPS; empty: HTTP.
  int grpc_port = 0;
  std::string cluster_host;  // Its listener for the cluster's processes.
  int cluster_port = 0;
};

struct LaunchPlan {
  std::string local_host;      // Numeric: where this machine's processes reach the others' probes.
  std::string advertise_host;  // What workers register and people are shown.
  std::optional<PlannedRouter> router;       // None: a node.
  std::vector<ChildSpec> children;           // The router first.
  std::vector<config::StageRank> places;     // A node's: one for each child, in the same order.
  std::map<std::string, int> metrics_ports;  // By worker; kept over its restarts.
  std::vector<PlannedPort> ports;            // Everything that the processes are told to listen on.
  std::vector<StartingGroup> groups;         // The workers.
};

// Plans a node if the options say so (config::IsNode), or else a cluster. Asks `free_port` for
// every port that they leave open. `for_workers`: arguments of each worker that overrule the
// options. `environment`: of this process. UNAVAILABLE if a node finds no way to --dist-init-addr.
absl::StatusOr<LaunchPlan> PlanLaunch(const config::ParsedOptions& options,
                                      const std::vector<std::string>& for_workers,
                                      const std::vector<std::string>& environment,
                                      const FindFreePort& free_port);

}  // namespace baton

#endif  // SERVICES_BATON_LAUNCH_PLAN_H_
