#include "services/worker/router_rpcs.h"

#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <utility>

#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"

namespace baton::worker {
namespace {

constexpr int kMaxReconnectMs = 2000;
// A list of members with their fingerprints.
constexpr int kMaxListBytes = 64 << 20;

}  // namespace

RouterRpcs::RouterRpcs(const std::string& address,
                       std::shared_ptr<const rpc::ClusterSecurity> security)
    : stub_(v1::Cluster::NewStub(
          rpc::OpenChannel(address, {.max_reconnect_ms = kMaxReconnectMs,
                                     .max_receive_bytes = kMaxListBytes,
                                     .security = std::move(security),
                                     .peers = {{rpc::PeerRole::kRouter, ""}}}))) {}

RouterRpcs::~RouterRpcs() {
  tracker_.CancelAll();
  tracker_.WaitIdle();
}

std::shared_ptr<RouterRpcs::LeaseCall> RouterRpcs::OpenLease(LeaseCall::Callbacks callbacks) {
  callbacks.on_done = [done = std::move(callbacks.on_done)](const absl::Status& status) {
    done(rpc::FromRouter(status));
  };
  const auto start = [this](grpc::ClientContext* context, LeaseCall::Reactor* reactor) {
    // gRPC moves a connection on while a call waits for it. Calls that fail at once, as they would
    // while the router does not listen yet, leave it to a poller that wakes every five seconds.
    context->set_wait_for_ready(true);
    stub_->async()->Lease(context, reactor);
  };
  return LeaseCall::Open(start, tracker_, std::move(callbacks));
}

void RouterRpcs::Find(v1::FindRequest request, int64_t timeout_ms,
                      std::function<void(const absl::Status&, const v1::FindResponse&)> done) {
  struct Call {  // Alive until its callback has run.
    Call(rpc::CallTracker& tracker, v1::FindRequest asked)
        : context(tracker), request(std::move(asked)) {}
    rpc::TrackedContext context;
    const v1::FindRequest request;
    v1::FindResponse response;
  };
  const auto call = std::make_shared<Call>(tracker_, std::move(request));
  call->context->set_deadline(std::chrono::system_clock::now() +
                              std::chrono::milliseconds(timeout_ms));
  stub_->async()->Find(&*call->context, &call->request, &call->response,
                       [call, done = std::move(done)](const grpc::Status& status) {
                         done(rpc::FromGrpc(status), call->response);
                       });
}

}  // namespace baton::worker
