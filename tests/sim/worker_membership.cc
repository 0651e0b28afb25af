#include "tests/sim/worker_membership.h"

#include <utility>

#include "tests/sim/router_process.h"
#include "tests/sim/topology.h"

namespace baton::sim {
namespace {

constexpr int64_t kHeartbeatUs = 500'000;
constexpr int64_t kRejoinGraceUs = 5'000'000;

}  // namespace

WorkerMembership::WorkerMembership(World& world, int node, router::WorkerInfo info,
                                   std::function<Status()> status, std::function<void()> on_view)
    : world_(world),
      node_(node),
      info_(std::move(info)),
      status_(std::move(status)),
      on_view_(std::move(on_view)) {}

void WorkerMembership::Start() { Beat(); }

void WorkerMembership::CallBroken(uint64_t call) {
  if (call == call_) call_ = 0;
  if (call != watch_) return;
  watch_ = 0;
  if (std::exchange(watch_is_older_, false)) KeepWatch();
  ReportSoon();  // The router may take this worker for dead.
}

void WorkerMembership::Beat() {
  world_.After(node_, kHeartbeatUs, "heartbeat timer", [this] { Beat(); });
  KeepWatch();
  if (call_ == 0) Send();
}

void WorkerMembership::ReportSoon() {
  if (!registered_) return;
  if (call_ == 0) {
    Send();
  } else {
    again_ = true;
  }
}

void WorkerMembership::KeepWatch() {
  if (!registered_ || watch_ != 0) return;
  watch_ = world_.OpenCall(node_, Topology::kRouter);
  if (watch_ == 0) return;
  world_.SendOnCall<RouterProcess>(
      watch_, node_, "watch", [call = watch_, instance = info_.instance](RouterProcess& router) {
        router.Watch(call, instance);
      });
}

void WorkerMembership::Noticed(uint64_t call) {
  if (call == watch_) ReportSoon();
}

void WorkerMembership::Send() {
  again_ = false;
  call_ = world_.OpenCall(node_, Topology::kRouter);
  if (call_ == 0) return;
  if (!registered_) {
    world_.SendOnCall<RouterProcess>(
        call_, node_, "register",
        [call = call_, info = info_](RouterProcess& router) { router.Register(call, info); });
    return;
  }
  const Status status = status_();
  world_.SendOnCall<RouterProcess>(
      call_, node_, "heartbeat",
      [call = call_, instance = info_.instance, life = router_incarnation_, version = view_version_,
       status](RouterProcess& router) {
        router.Heartbeat(call, {0, instance, life, version, status.ready, status.load});
      });
}

void WorkerMembership::Registered(uint64_t call, const absl::Status& status,
                                  uint64_t router_incarnation) {
  if (call != call_) return;
  call_ = 0;
  registered_ = status.ok();
  if (!registered_) return;
  router_incarnation_ = router_incarnation;
  view_version_ = 0;  // Ask for the whole view.
  if (!view_.empty()) keep_until_us_ = world_.now_us() + kRejoinGraceUs;
  watch_is_older_ = watch_ != 0;  // The router has refused it, or is about to be gone.
  KeepWatch();
  Send();
}

void WorkerMembership::HeartbeatReplied(uint64_t call, const absl::Status& status, uint64_t version,
                                        bool changed,
                                        const std::vector<router::WorkerInfo>& workers) {
  if (call != call_) return;
  call_ = 0;
  if (!status.ok()) {
    registered_ = false;  // The lease is over, or the router is a new one.
    Send();
    return;
  }
  if (changed) {
    listed_.clear();
    for (const router::WorkerInfo& worker : workers) listed_[worker.instance.id] = worker;
    view_version_ = version;
  }
  // Those whom a new router does not list yet are kept for a while.
  std::map<std::string, router::WorkerInfo> view = listed_;
  if (world_.now_us() < keep_until_us_) view.insert(view_.begin(), view_.end());
  if (view != view_ || changed) {
    view_ = std::move(view);
    on_view_();
  }
  // Says at once which view it has now.
  if (call_ == 0 && (changed || again_)) Send();
}

int WorkerMembership::FindPeer(const InstanceRef& instance) const {
  const auto it = view_.find(instance.id);
  if (it == view_.end() || it->second.instance != instance) return -1;
  return NodeOf(instance.id);
}

}  // namespace baton::sim
