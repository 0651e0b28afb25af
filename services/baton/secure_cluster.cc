#include "services/baton/secure_cluster.h"

#include "absl/strings/str_cat.h"
#include "common/net/host.h"

namespace baton {

absl::StatusOr<std::shared_ptr<const rpc::ClusterSecurity>> SecureCluster(
    const v1::Options& options, rpc::PeerRole role) {
  // For an operator, --instance-id names the worker to drain, not the caller.
  const bool named = role != rpc::PeerRole::kOperator;
  return rpc::ClusterSecurity::Load({options.cluster_tls_cert(), options.cluster_tls_key(),
                                     options.cluster_tls_ca(), options.cluster_token_file()},
                                    {role, named ? options.instance_id() : ""});
}

std::string OpenListenerWarning(const std::string& host,
                                const std::shared_ptr<const rpc::ClusterSecurity>& security) {
  if (security != nullptr || net::IsLoopback(host)) return "";
  return absl::StrCat("the listener for the cluster's processes on ", host,
                      " does not authenticate its callers: any process that reaches it can join, "
                      "drain and read. Set "
                      "--cluster-tls-cert or --cluster-token-file (docs/security.md)");
}

}  // namespace baton
