// How a process proves to the others of its cluster who it is, by its options.
#ifndef SERVICES_BATON_SECURE_CLUSTER_H_
#define SERVICES_BATON_SECURE_CLUSTER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/cluster_security.h"
#include "proto/baton/v1/config.pb.h"

namespace baton {

// Null: it does not, nor are others asked. InvalidField for files that can't serve.
absl::StatusOr<std::shared_ptr<const rpc::ClusterSecurity>> SecureCluster(
    const v1::Options& options, rpc::PeerRole role);

// The warning to log for a cluster listener on `host` (numeric). Empty: only this machine reaches
// it, or callers are checked.
std::string OpenListenerWarning(const std::string& host,
                                const std::shared_ptr<const rpc::ClusterSecurity>& security);

}  // namespace baton

#endif  // SERVICES_BATON_SECURE_CLUSTER_H_
