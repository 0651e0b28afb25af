#include "services/router/discovery/announcements.h"

#include <chrono>
#include <utility>

#include "common/base/failpoint.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"

namespace baton::router {
namespace {

constexpr auto kTimeout = std::chrono::seconds(2);

// Alive until its callback has run.
struct Announcement {
  explicit Announcement(rpc::CallTracker& tracker) : context(tracker) {}

  rpc::TrackedContext context;
  std::shared_ptr<v1::Worker::Stub> worker;
  v1::AnnounceResponse response;
};

}  // namespace

Announcements::Announcements(
    int cluster_port, std::string host, std::shared_ptr<const rpc::ClusterSecurity> security,
    std::function<void(const std::string& address, const absl::Status&)> on_answer)
    : security_(std::move(security)), on_answer_(std::move(on_answer)) {
  request_.set_grpc_port(cluster_port);
  request_.set_host(std::move(host));
}

void Announcements::Announce(const std::string& address) {
  if (absl::Status status = Failpoint("router.announce"); !status.ok()) {
    return on_answer_(address, status);
  }
  std::shared_ptr<v1::Worker::Stub>& worker = workers_[address];
  if (worker == nullptr) {
    worker = v1::Worker::NewStub(rpc::OpenChannel(
        address, {.security = security_,
                  .peers = {{rpc::PeerRole::kPrefill, ""}, {rpc::PeerRole::kDecode, ""}}}));
  }
  const auto announcement = std::make_shared<Announcement>(tracker_);
  announcement->worker = worker;
  announcement->context->set_deadline(std::chrono::system_clock::now() + kTimeout);
  worker->async()->Announce(
      &*announcement->context, &request_, &announcement->response,
      [announcement, address, on_answer = on_answer_](const grpc::Status& status) {
        on_answer(address, rpc::FromGrpc(status));
      });
}

void Announcements::Stop() {
  tracker_.CancelAll();
  tracker_.WaitIdle();
  workers_.clear();
}

}  // namespace baton::router
