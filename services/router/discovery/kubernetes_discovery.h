// Finds workers by the Kubernetes API and announces this router to them, so that workers need no
// router's address: they register like any others. Owns the list and watch of pods
// (core/pod_watch.h) and the announcements (core/announcer.h); knows no request and no membership.
#ifndef SERVICES_ROUTER_DISCOVERY_KUBERNETES_DISCOVERY_H_
#define SERVICES_ROUTER_DISCOVERY_KUBERNETES_DISCOVERY_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/call_tracker.h"
#include "common/rpc/cluster_security.h"
#include "proto/baton/v1/cluster.grpc.pb.h"

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

// The RPCs by which a router announces itself to workers (baton.v1.Worker).

// One thread's.
class Announcements {
 public:
  // `security` may be null. `on_answer` runs on gRPC's threads, once for each announcement, and
  // must not block.
  Announcements(int cluster_port, std::string host,
                std::shared_ptr<const rpc::ClusterSecurity> security,
                std::function<void(const std::string& address, const absl::Status&)> on_answer);
  ~Announcements() { Stop(); }

  void Announce(const std::string& address);
  // Lets go of the connection.
  void Forget(const std::string& address) { workers_.erase(address); }
  // Cancels what is under way and waits for its answers. Idempotent.
  void Stop();

 private:
  v1::AnnounceRequest request_;
  const std::shared_ptr<const rpc::ClusterSecurity> security_;
  const std::function<void(const std::string&, const absl::Status&)> on_answer_;
  std::map<std::string, std::shared_ptr<v1::Worker::Stub>> workers_;  // By address.
  rpc::CallTracker tracker_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_DISCOVERY_KUBERNETES_DISCOVERY_H_
