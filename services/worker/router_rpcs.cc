#include "services/worker/router_rpcs.h"

#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <utility>

#include "common/base/log.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"

namespace baton::worker {
namespace {

constexpr int kMaxReconnectMs = 2000;
// A list of members with their fingerprints.
constexpr int kMaxViewBytes = 64 << 20;

// One unary call; alive until its callback has run.
template <typename Request, typename Response>
struct Unary {
  Unary(rpc::CallTracker& tracker, Request asked, int64_t timeout_ms)
      : context(tracker), request(std::move(asked)) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  }

  rpc::TrackedContext context;
  const Request request;
  Response response;
};

}  // namespace

// Keeps itself alive until its end.
class RouterRpcs::WatchCall : public grpc::ClientReadReactor<v1::WatchNotice> {
 public:
  WatchCall(rpc::CallTracker& tracker, const v1::InstanceRef& self, std::function<void()> on_notice,
            std::function<void()> done)
      : context_(tracker), on_notice_(std::move(on_notice)), done_(std::move(done)) {
    *request_.mutable_instance() = self;
  }

  static void Start(std::shared_ptr<WatchCall> call, v1::Cluster::Stub& stub) {
    stub.async()->Watch(&*call->context_, &call->request_, call.get());
    WatchCall& started = *call;
    started.keep_ = std::move(call);
    started.StartRead(&started.notice_);
    started.StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    on_notice_();
    StartRead(&notice_);
  }
  void OnDone(const grpc::Status& status) override {
    LOG(kDebug) << "the watch ends: " << status.error_message();
    done_();
    keep_.reset();  // The owner may go once the context has.
  }

  rpc::TrackedContext context_;
  const std::function<void()> on_notice_;
  const std::function<void()> done_;
  v1::WatchRequest request_;
  v1::WatchNotice notice_;
  std::shared_ptr<WatchCall> keep_;
};

RouterRpcs::RouterRpcs(const std::string& address,
                       std::shared_ptr<const rpc::ClusterSecurity> security)
    : stub_(v1::Cluster::NewStub(
          rpc::OpenChannel(address, {.max_reconnect_ms = kMaxReconnectMs,
                                     .max_receive_bytes = kMaxViewBytes,
                                     .security = std::move(security),
                                     .peers = {{rpc::PeerRole::kRouter, ""}}}))) {}

RouterRpcs::~RouterRpcs() {
  tracker_.CancelAll();
  tracker_.WaitIdle();
}

void RouterRpcs::Register(
    v1::RegisterRequest request, int64_t timeout_ms,
    std::function<void(const absl::Status&, const v1::RegisterResponse&)> done) {
  using Call = Unary<v1::RegisterRequest, v1::RegisterResponse>;
  const auto call = std::make_shared<Call>(tracker_, std::move(request), timeout_ms);
  // gRPC moves a connection on while a call waits for it. Calls that fail at once, as they would
  // while the router does not listen yet, leave it to a poller that wakes every five seconds.
  call->context->set_wait_for_ready(true);
  stub_->async()->Register(&*call->context, &call->request, &call->response,
                           [call, done = std::move(done)](const grpc::Status& status) {
                             done(rpc::FromRouter(status), call->response);
                           });
}

void RouterRpcs::Heartbeat(
    v1::HeartbeatRequest request, int64_t timeout_ms,
    std::function<void(const absl::Status&, const v1::HeartbeatResponse&)> done) {
  using Call = Unary<v1::HeartbeatRequest, v1::HeartbeatResponse>;
  const auto call = std::make_shared<Call>(tracker_, std::move(request), timeout_ms);
  stub_->async()->Heartbeat(&*call->context, &call->request, &call->response,
                            [call, done = std::move(done)](const grpc::Status& status) {
                              done(rpc::FromGrpc(status), call->response);
                            });
}

void RouterRpcs::Find(v1::FindRequest request, int64_t timeout_ms,
                      std::function<void(const absl::Status&, const v1::FindResponse&)> done) {
  using Call = Unary<v1::FindRequest, v1::FindResponse>;
  const auto call = std::make_shared<Call>(tracker_, std::move(request), timeout_ms);
  stub_->async()->Find(&*call->context, &call->request, &call->response,
                       [call, done = std::move(done)](const grpc::Status& status) {
                         done(rpc::FromGrpc(status), call->response);
                       });
}

void RouterRpcs::Watch(const v1::InstanceRef& self, std::function<void()> on_notice,
                       std::function<void()> done) {
  WatchCall::Start(
      std::make_shared<WatchCall>(tracker_, self, std::move(on_notice), std::move(done)), *stub_);
}

}  // namespace baton::worker
