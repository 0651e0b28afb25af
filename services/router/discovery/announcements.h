// The RPCs by which a router announces itself to workers (baton.v1.Worker).
#ifndef SERVICES_ROUTER_DISCOVERY_ANNOUNCEMENTS_H_
#define SERVICES_ROUTER_DISCOVERY_ANNOUNCEMENTS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/call_tracker.h"
#include "common/rpc/cluster_security.h"
#include "proto/baton/v1/cluster.grpc.pb.h"

namespace baton::router {

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

#endif  // SERVICES_ROUTER_DISCOVERY_ANNOUNCEMENTS_H_
