// The processes of a local cluster (`baton up`, `baton serve`): their names, arguments, ports, and
// the addresses under which they are found. Starts nothing.
#ifndef SERVICES_BATON_UP_PLAN_H_
#define SERVICES_BATON_UP_PLAN_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/options.h"
#include "proto/baton/v1/cluster.pb.h"
#include "services/baton/child_plan.h"
#include "services/baton/start_progress.h"
#include "services/baton/supervisor.h"

namespace baton {

struct UpPlan {
  std::string listen_host;     // Numeric; may stand for all addresses.
  std::string advertise_host;  // What workers register and people are shown.
  std::string local_host;      // Where this machine's processes reach the router's clients' ports.
  int http_port = 0;           // The router's.
  std::string certificate;     // For its HTTPS; empty: HTTP.
  int grpc_port = 0;
  std::string cluster_host;  // Where this machine's processes reach the router's listener for them.
  int cluster_port = 0;
  std::map<std::string, int> metrics_ports;  // By worker; kept over its restarts.
  std::vector<PlannedPort> ports;            // Everything that the processes are told to listen on.
  std::vector<ChildSpec> children;           // The router first.
  std::vector<StartingGroup> groups;         // The workers.
};

// Asks `free_port` for every port that the options leave open. `for_workers`: arguments of each
// worker that overrule the options. `environment`: of this process.
absl::StatusOr<UpPlan> PlanUp(const config::ParsedOptions& options,
                              const std::vector<std::string>& for_workers,
                              const std::vector<std::string>& environment,
                              const FindFreePort& free_port);

// What the command prints when its cluster is ready.

// One line that says so with the router's addresses (programs look for it), a table of the
// processes (role, layers, KV tokens, addresses), a curl line to copy.
std::string ReadyText(const UpPlan& plan, const std::vector<v1::ListedWorker>& workers,
                      const std::string& model_name, bool needs_key, double seconds);

}  // namespace baton

#endif  // SERVICES_BATON_UP_PLAN_H_
