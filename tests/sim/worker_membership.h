// The worker side of membership, as services/worker does it over gRPC: register, heartbeat, keep
// the view, and connect to peers before saying that a view is applied.
#ifndef TESTS_SIM_WORKER_MEMBERSHIP_H_
#define TESTS_SIM_WORKER_MEMBERSHIP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "services/router/core/membership.h"
#include "tests/sim/world.h"

namespace baton::sim {

class WorkerMembership {
 public:
  struct Status {
    bool ready = false;
    router::WorkerLoad load;
  };

  WorkerMembership(World& world, int node, router::WorkerInfo info, std::function<Status()> status,
                   std::function<void()> on_view);

  void Start();
  void CallBroken(uint64_t call);

  // Answers of the router.
  void Registered(uint64_t call, const absl::Status& status, uint64_t router_incarnation);
  void Noticed(uint64_t call);  // The router wants a heartbeat.
  void HeartbeatReplied(uint64_t call, const absl::Status& status, uint64_t version, bool changed,
                        const std::vector<router::WorkerInfo>& workers);

  // The status has changed.
  void ReportSoon();

  const std::map<std::string, router::WorkerInfo>& view() const { return view_; }
  // The node of a peer in this incarnation, or -1.
  int FindPeer(const InstanceRef& instance) const;

 private:
  void Beat();  // Every interval.
  void Send();
  void KeepWatch();

  World& world_;
  const int node_;
  const router::WorkerInfo info_;
  const std::function<Status()> status_;
  const std::function<void()> on_view_;
  bool registered_ = false;
  uint64_t call_ = 0;   // The one that is out, if any.
  bool again_ = false;  // There was news while it was.
  uint64_t watch_ = 0;
  bool watch_is_older_ = false;  // Than the registration: its end opens a new one at once.
  uint64_t router_incarnation_ = 0;
  uint64_t view_version_ = 0;
  std::map<std::string, router::WorkerInfo> listed_;  // As the router said last.
  std::map<std::string, router::WorkerInfo> view_;    // And those who are kept.
  int64_t keep_until_us_ = 0;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_WORKER_MEMBERSHIP_H_
