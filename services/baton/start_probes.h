// How a starting cluster and a starting node look from outside, to those who started them.
#ifndef SERVICES_BATON_START_PROBES_H_
#define SERVICES_BATON_START_PROBES_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/rpc/cluster_security.h"
#include "services/baton/launch_plan.h"
#include "services/baton/start_watch.h"

namespace baton {

// Asks the router until every worker is there and a request would be served. `security`: null, and
// it is not asked who it is.
LookAtStart LookAtCluster(const LaunchPlan& plan,
                          std::shared_ptr<const rpc::ClusterSecurity> security);

// Asks the probes of the workers until all are ready: registered, and the first rank when its chain
// or decode service stands, for which it waits for the other nodes. The node has started when every
// worker has loaded.
LookAtStart LookAtNode(const LaunchPlan& plan);

}  // namespace baton

#endif  // SERVICES_BATON_START_PROBES_H_
