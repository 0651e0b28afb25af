// The fixture of the tests of memberships whose stages and decode services are several ranks.
#ifndef SERVICES_ROUTER_CORE_MEMBERSHIP_RANKS_FIXTURE_H_
#define SERVICES_ROUTER_CORE_MEMBERSHIP_RANKS_FIXTURE_H_

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "services/router/core/membership.h"
#include "services/router/core/test_cluster.h"

namespace baton::router {

class MembershipRanksTest : public ::testing::Test {
 protected:
  absl::Status Join(const WorkerInfo& worker) { return members_.Register(worker, now_us_, lost_); }
  // Ready, and linking all members if it speaks for them.
  void Beat(const WorkerInfo& worker) { BeatLinking(worker, LinkedBy(members_, worker.instance)); }
  void BeatLinking(const WorkerInfo& worker, std::vector<uint64_t> linked) {
    members_.Heartbeat(worker.instance, true, {}, now_us_, std::move(linked));
  }
  void JoinAll(const std::vector<WorkerInfo>& workers) {
    for (const WorkerInfo& worker : workers) ASSERT_EQ(Join(worker), absl::OkStatus());
    for (const WorkerInfo& worker : workers) Beat(worker);
  }
  // Two stages of so many ranks; their incarnations are 1 and on.
  static std::vector<WorkerInfo> Grid(int ranks = 2) {
    std::vector<WorkerInfo> workers;
    for (const int stage : {0, 1}) {
      for (int rank = 0; rank < ranks; ++rank) {
        workers.push_back(TestStageRank(stage, rank, ranks));
        workers.back().instance.incarnation = workers.size();
      }
    }
    return workers;
  }
  // A decode service of so many ranks; their incarnations are 101 and on.
  static std::vector<WorkerInfo> Service(int ranks = 2, const std::string& id = "0") {
    std::vector<WorkerInfo> workers;
    for (int rank = 0; rank < ranks; ++rank) {
      workers.push_back(ranks == 1 ? TestDecode("d" + id) : TestDecodeRank(rank, ranks, id));
      workers.back().instance.incarnation = 100 + workers.size();
    }
    return workers;
  }

  Membership members_{MembershipOptions{.lease_us = 1000}};
  std::vector<Worker> lost_;
  int64_t now_us_ = 100;
};

inline std::vector<WorkerInfo> Together(std::vector<WorkerInfo> a,
                                        const std::vector<WorkerInfo>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_MEMBERSHIP_RANKS_FIXTURE_H_
