// What those who start several processes print about them (launch_plan.h).
#ifndef SERVICES_BATON_LAUNCH_TEXT_H_
#define SERVICES_BATON_LAUNCH_TEXT_H_

#include <string>
#include <vector>

#include "proto/baton/v1/cluster.pb.h"
#include "proto/baton/v1/config.pb.h"
#include "services/baton/launch_plan.h"

namespace baton {

// "node 1 of 2: stage 1 rank 0 to stage 1 rank 1 of c, 2 stages of 2 ranks"; of a decode service
// "node 1 of 2: rank 2 to rank 3 of decode service d, 4 ranks".
std::string NodeText(const v1::Options& options);

// What is printed when a cluster or a node is ready: a line that programs look for and a table of
// the processes.

// With the router's addresses, and a curl line to copy. `workers`: as the router lists them.
std::string ClusterReadyText(const v1::Options& options, const LaunchPlan& plan,
                             const std::vector<v1::ListedWorker>& workers, double seconds);

// The first rank of a chain or a decode service is ready when all of that stands, which its node's
// line says.
std::string NodeReadyText(const v1::Options& options, const LaunchPlan& plan, double seconds);

}  // namespace baton

#endif  // SERVICES_BATON_LAUNCH_TEXT_H_
