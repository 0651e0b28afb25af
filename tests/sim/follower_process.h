// A simulated process of a decode service that is not its first: the real Link above what every one
// has (decode_rank.h). It decides nothing about requests.
#ifndef TESTS_SIM_FOLLOWER_PROCESS_H_
#define TESTS_SIM_FOLLOWER_PROCESS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/decode_rank.h"
#include "tests/sim/sim_link.h"

namespace baton::sim {

class FollowerProcess : public DecodeRank {
 public:
  FollowerProcess(World& world, const Topology& topology, StageGroups& groups, int node,
                  uint64_t incarnation);

  // From rank 0, on a link, which is that call.
  // `nonsense`: an invalid order: rank 0 has not given it, or only once.
  void ReceiveOrder(uint64_t call, const SimOrder& order, bool nonsense);

  SimLink* link() override { return &link_; }
  void CallBroken(uint64_t call) override;

 private:
  void OnLease(const LeaseEvent& event) override;
  void OnReport(uint64_t epoch, const prefill::PlannerEvent& report) override {
    link_.Report(epoch, "report", report);
  }
  void FailEpoch(const absl::Status& status) override { link_.Raise(links::StageFailed{status}); }
  const Oracle::Sequence* SequenceOfGrant(uint64_t generation) const override;
  void Take(const prefill::Plan& plan) { HandleStage(prefill::PlanArrived{plan}); }
  void Take(const KvGrant& grant);
  void Take(const prefill::RevokeKv& revoke);

  SimLink link_;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_FOLLOWER_PROCESS_H_
