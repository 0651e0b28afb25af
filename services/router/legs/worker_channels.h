// One gRPC channel per incarnation of a worker. A restarted worker gets a new channel even at the
// same address: the old one may be in backoff, and its calls must not reach the new process.
#ifndef SERVICES_ROUTER_LEGS_WORKER_CHANNELS_H_
#define SERVICES_ROUTER_LEGS_WORKER_CHANNELS_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/rpc/cluster_security.h"
#include "common/types/instance.h"
#include "proto/baton/v1/decode.grpc.pb.h"
#include "proto/baton/v1/prefill.grpc.pb.h"
#include "proto/baton/v1/relay.grpc.pb.h"

namespace baton::router {

// What calls to one worker need. Calls hold it, so it outlives its entry below.
struct WorkerStubs {
  // `security` may be null.
  WorkerStubs(InstanceRef ref, const std::string& address,
              std::shared_ptr<const rpc::ClusterSecurity> security);

  const InstanceRef instance;
  const std::string address;
  std::unique_ptr<v1::Decode::Stub> decode;
  std::unique_ptr<v1::Prefill::Stub> prefill;
  std::unique_ptr<v1::Relays::Stub> relays;
};

// One thread.
class WorkerChannels {
 public:
  // `security` may be null.
  explicit WorkerChannels(std::shared_ptr<const rpc::ClusterSecurity> security)
      : security_(std::move(security)) {}

  std::shared_ptr<WorkerStubs> Get(const InstanceRef& instance, const std::string& address);

  // Lets go of all but these.
  void Keep(const std::vector<InstanceRef>& instances);

 private:
  const std::shared_ptr<const rpc::ClusterSecurity> security_;
  std::map<InstanceRef, std::shared_ptr<WorkerStubs>> stubs_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_LEGS_WORKER_CHANNELS_H_
