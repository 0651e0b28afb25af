// Watches a starting cluster from outside: asks its router until every expected worker is there and
// a request would be served. Only answers of the incarnations that were started count: another
// cluster's router may have the port, and workers of a former run may have its workers' names. A
// thread of its own, so that the waiting thread stays free for signals.
#ifndef SERVICES_BATON_CLUSTER_WATCH_H_
#define SERVICES_BATON_CLUSTER_WATCH_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/rpc/cluster_security.h"
#include "proto/baton/v1/cluster.grpc.pb.h"
#include "proto/baton/v1/cluster.pb.h"
#include "services/baton/start_progress.h"

namespace baton {

struct ClusterWatchOptions {
  std::string host;  // Numeric, of the router.
  int http_port = 0;
  bool https = false;        // The certificate is not looked at: it is this machine's own process.
  std::string cluster_host;  // Numeric, of the router's listener for workers.
  int cluster_port = 0;
  std::shared_ptr<const rpc::ClusterSecurity> security;  // Null: it is not asked who it is.
  std::vector<StartingGroup> groups;                     // The workers' instance ids.
};

// The router's name among the children.
inline constexpr char kRouterName[] = "router";

class ClusterWatch {
 public:
  explicit ClusterWatch(ClusterWatchOptions options);
  ~ClusterWatch();  // Ends what is under way.
  ClusterWatch(const ClusterWatch&) = delete;
  ClusterWatch& operator=(const ClusterWatch&) = delete;

  // Any thread; at once.

  // A child listens as this incarnation (StartWatch::on_incarnation). The router is `kRouterName`.
  void OnIncarnation(const std::string& name, uint64_t incarnation);
  bool ready() const;
  // What is missing, for people; empty once it is ready.
  std::string waiting_for() const;
  // Lines on how far it has come since the last call.
  std::vector<std::string> TakeNews();
  // The workers as the router lists them; complete once it is ready.
  std::vector<v1::ListedWorker> workers() const;

 private:
  void Run();
  // OK, or what is missing.
  absl::Status Ask();
  absl::Status AskForWorkers(const std::map<std::string, uint64_t>& incarnations);
  absl::Status AskForReadiness() const;

  const ClusterWatchOptions options_;
  std::unique_ptr<v1::Cluster::Stub> stub_;  // The thread's own.
  StartProgress progress_;                   // Likewise.
  mutable Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  std::string waiting_for_ ABSL_GUARDED_BY(mutex_) = "the router does not listen";
  std::map<std::string, uint64_t> incarnations_ ABSL_GUARDED_BY(mutex_);  // 0: not there.
  std::vector<std::string> news_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::ListedWorker> workers_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace baton

#endif  // SERVICES_BATON_CLUSTER_WATCH_H_
