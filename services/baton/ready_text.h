// What `baton up` prints when its cluster is ready.
#ifndef SERVICES_BATON_READY_TEXT_H_
#define SERVICES_BATON_READY_TEXT_H_

#include <string>
#include <vector>

#include "proto/baton/v1/cluster.pb.h"
#include "services/baton/up_plan.h"

namespace baton {

// One line that says so with the router's addresses (programs look for it), a table of the
// processes (role, layers, KV tokens, addresses), a curl line to copy.
std::string ReadyText(const UpPlan& plan, const std::vector<v1::ListedWorker>& workers,
                      const std::string& model_name, bool needs_key, double seconds);

}  // namespace baton

#endif  // SERVICES_BATON_READY_TEXT_H_
