// A simulated follower of a decode service, rank 1 or a later one: the real Link and Follower, and
// like rank 0 a real LeaseTable and an executor over its own heads. Plays
// services/decode/follower_service and the shell of its link.
#ifndef TESTS_SIM_FOLLOWER_PROCESS_H_
#define TESTS_SIM_FOLLOWER_PROCESS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/serial_events.h"
#include "services/decode/core/follower.h"
#include "services/links/core/link.h"
#include "services/links/core/wiring.h"
#include "tests/sim/decode_kv.h"
#include "tests/sim/decode_rank.h"
#include "tests/sim/decode_steps.h"
#include "tests/sim/follower_witness.h"
#include "tests/sim/link_witness.h"
#include "tests/sim/sim_group.h"
#include "tests/sim/sim_memory.h"
#include "tests/sim/stage_groups.h"
#include "tests/sim/topology.h"
#include "tests/sim/worker_drain.h"
#include "tests/sim/worker_membership.h"
#include "tests/sim/world.h"

namespace baton::sim {

class FollowerProcess : public DecodeRank {
 public:
  FollowerProcess(World& world, const Topology& topology, StageGroups& groups, int node,
                  uint64_t incarnation);

  void Drain(int64_t drain_us) override { drain_->Begin(drain_us); }
  DecodeKv& kv() override { return kv_; }
  DecodeSteps& steps() override { return steps_; }
  // From rank 0, on a link, which is that call.
  void ReceiveHello(uint64_t call, const links::Hello& hello);
  // `nonsense`: an invalid order: rank 0's core has not given it, or only once.
  void ReceiveOrder(uint64_t call, const decode::Order& order, bool nonsense);
  void ReceivePing(const links::PingHeard& ping) { link_events_.Raise(ping); }
  void ReceiveGroup(uint64_t call, const Rendezvous::Message& message);

  WorkerMembership* worker() override { return membership_.get(); }
  SimGroup* ranks() override { return &group_; }
  void CallBroken(uint64_t call) override;
  void PeerClosed(const InstanceRef& peer, int64_t opened_us) override {
    membership_->PeerClosed(peer, opened_us);
  }
  absl::Status CheckInvariants() const override;
  bool AtRest(std::string& why_not) const override;

 private:
  void HandleCore(const decode::FollowerEvent& event);
  void Perform(const decode::GrantKv& action) { kv_.Grant(action.grant); }
  void Perform(const decode::RevokeKv& action) { kv_.Revoke(action.slot, action.generation); }
  void Perform(const decode::RunStep& action) { steps_.Run(action); }
  void Perform(const decode::TellGranted& action);
  void Perform(const decode::TellLease& action);
  void Perform(const decode::FailEpoch& action);
  // Free pages hold canaries once the last step that uses them has ended.
  void FreePages(const std::vector<int>& pages);
  void FreeWhatSteppedOut();

  void HandleLink(const links::LinkEvent& event);
  void Perform(const links::TryEpoch& action);
  void Perform(const links::FormGroup& action);
  void Perform(const links::SendReady& action);
  void Perform(const links::SendPong& action);
  void Perform(const links::TakeWork& action);
  void Perform(const links::PassNextStageDone&) {}  // For chains only.
  void Perform(const links::DropEpoch& action);
  void Perform(const links::RefuseLink& action);
  void Perform(const links::EndLink& action) { world_.BreakCall(action.link); }
  void ScheduleLinkTick();
  void Report(uint64_t epoch, const decode::Event& event);
  void Tell(uint64_t call, const char* label, const links::WiringEvent& event);
  // Keeps an event to replay after its epoch is over, when it must have no effect.
  void KeepForLater(const links::LinkEvent& event);
  void ScheduleStale();
  int LeaderNode() const { return topology_.DecodeNode(topology_.DecodeOf(node_)); }
  const Oracle::Sequence* SequenceOf(uint64_t generation) const;

  World& world_;
  const Topology& topology_;
  StageGroups& groups_;
  const int node_;
  const InstanceRef self_;
  const TensorRank rank_;
  decode::Follower core_;
  FollowerWitness witness_;
  links::Link link_;
  LinkWitness link_witness_;
  SimMemory memory_;
  SimGroup group_;
  DecodeSteps steps_;
  DecodeKv kv_;
  std::unique_ptr<WorkerMembership> membership_;
  std::unique_ptr<WorkerDrain> drain_;
  SerialEvents<decode::FollowerEvent> core_events_{
      [this](const decode::FollowerEvent& event) { HandleCore(event); }};
  SerialEvents<links::LinkEvent> link_events_{
      [this](const links::LinkEvent& event) { HandleLink(event); }};
  std::optional<decode::Order> arriving_;  // From the WorkHeard being handled.
  bool nonsense_ = false;                  // It is.
  std::optional<decode::Order> last_order_;
  uint64_t epoch_ = 0;              // The epoch that has begun last.
  std::vector<InstanceRef> ranks_;  // The ranks of that epoch.
  std::set<int> stepping_;          // Free pages that a step still uses.
  std::vector<links::LinkEvent> stale_link_;
  int64_t link_tick_us_ = kNeverUs;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_FOLLOWER_PROCESS_H_
