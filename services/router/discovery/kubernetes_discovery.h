// Finds workers by the Kubernetes API and announces this router to them, so that workers need no
// router's address: they register like any others. Owns the list and watch of pods
// (core/pod_watch.h) and the announcements (core/announcer.h); knows no request and no membership.
#ifndef SERVICES_ROUTER_DISCOVERY_KUBERNETES_DISCOVERY_H_
#define SERVICES_ROUTER_DISCOVERY_KUBERNETES_DISCOVERY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/cluster_security.h"

namespace baton::router {

struct KubernetesDiscoveryOptions {
  std::string account_dir;
  std::string name_space;  // Empty: the pod's own.
  std::string selector;    // A label selector, in the API's syntax.
  int worker_port = 0;     // The workers' gRPC port; 0: the container port named "grpc".
  int cluster_port = 0;    // Where workers register with this router.
  std::string host;        // That workers shall use; empty: the address that the call comes from.
  std::shared_ptr<const rpc::ClusterSecurity> security;  // May be null.
};

class KubernetesDiscovery {
 public:
  // Starts a thread of its own. FailedPrecondition outside of a pod.
  static absl::StatusOr<std::unique_ptr<KubernetesDiscovery>> Start(
      KubernetesDiscoveryOptions options);
  ~KubernetesDiscovery();  // Stops; workers that have joined stay members.
  KubernetesDiscovery(const KubernetesDiscovery&) = delete;
  KubernetesDiscovery& operator=(const KubernetesDiscovery&) = delete;

 private:
  class Impl;
  explicit KubernetesDiscovery(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_DISCOVERY_KUBERNETES_DISCOVERY_H_
