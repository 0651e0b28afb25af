// A process of a simulated decode service: its first, which is the service to routers and plans, or
// another one. What both have: the real Stage and MemberGrants, a real LeaseTable and an executor
// over its own layers and heads.
#ifndef TESTS_SIM_DECODE_RANK_H_
#define TESTS_SIM_DECODE_RANK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "common/base/serial_events.h"
#include "services/links/core/hello.h"
#include "services/prefill/core/chain_planner.h"
#include "services/prefill/core/member_grants.h"
#include "services/prefill/core/neighbours.h"
#include "services/prefill/core/stage.h"
#include "tests/sim/decode_kv.h"
#include "tests/sim/decode_steps.h"
#include "tests/sim/sim_group.h"
#include "tests/sim/sim_memory.h"
#include "tests/sim/stage_groups.h"
#include "tests/sim/topology.h"
#include "tests/sim/worker_drain.h"
#include "tests/sim/worker_membership.h"
#include "tests/sim/world.h"

namespace baton::sim {

// What the first tells the others.
using SimOrder = std::variant<prefill::Plan, KvGrant, prefill::RevokeKv>;

// As links know a member of a decode service.
links::ChainPlace DecodePlaceOf(const Topology& topology, int node, const InstanceRef& self);

class DecodeRank : public Process {
 public:
  DecodeRank(World& world, const Topology& topology, StageGroups& groups, int node,
             uint64_t incarnation, DecodeSteps::Hooks steps);

  // Told to stop: exits when it is drained.
  void Drain(int64_t drain_us) { drain_->Begin(drain_us); }
  DecodeKv& kv() { return kv_; }
  DecodeSteps& steps() { return steps_; }
  // What the first has freed is free on every member.
  void FreePage(uint64_t epoch, int page);

  // Data plane, between stages.
  void ReceiveActivations(const DecodeSteps::Activations& activations, bool corrupt);
  void ReceiveCredit(uint64_t epoch, uint64_t number);

  WorkerMembership* worker() override { return membership_.get(); }
  SimGroup* ranks() override { return &group_; }
  absl::Status CheckInvariants() const override;
  bool AtRest(std::string& why_not) const override;

 protected:
  // From this rank's lease table.
  virtual void OnLease(const LeaseEvent& event) = 0;
  // What the stage says, of `epoch`.
  virtual void OnReport(uint64_t epoch, const prefill::PlannerEvent& report) = 0;
  virtual void FailEpoch(const absl::Status& status) = 0;
  virtual const Oracle::Sequence* SequenceOfGrant(uint64_t generation) const = 0;

  prefill::ComputeFinished ResultOf(const DecodeSteps::Ended& ended);
  // When endpoints have changed: an epoch ends with those to its neighbours.
  void CheckNeighbours();

  absl::Status Begin(const links::Hello& hello);
  void EndEpoch(const absl::Status& why);
  void HandleStage(const prefill::StageEvent& event) { stage_events_.Raise(event); }
  void Perform(const prefill::StageAction& action);

  World& world_;
  const Topology& topology_;
  StageGroups& groups_;
  const int node_;
  const InstanceRef self_;
  const int member_;
  const int stage_index_;
  const TensorRank rank_;
  prefill::Neighbours neighbours_;
  uint64_t epoch_ = 0;                // That has begun here; 0: none.
  std::vector<InstanceRef> members_;  // The epoch's.
  prefill::Stage stage_;
  SimMemory memory_;
  SimGroup group_;
  DecodeSteps steps_;
  DecodeKv kv_;
  prefill::MemberGrants grants_;
  std::unique_ptr<WorkerMembership> membership_;
  std::unique_ptr<WorkerDrain> drain_;

 private:
  bool TellsPrompt(const DecodeSteps::Row& row) const;
  static prefill::ComputeFinished::Prompt TellPrompt(const DecodeSteps::Row& row);
  void HandleOne(const prefill::StageEvent& event);
  void Pass(const prefill::SendActivations& send);
  void ReturnCredit(const prefill::ReturnCredit& credit);
  void FailLater(const absl::Status& status);

  SerialEvents<prefill::StageEvent> stage_events_{
      [this](const prefill::StageEvent& event) { HandleOne(event); }};
};

}  // namespace baton::sim

#endif  // TESTS_SIM_DECODE_RANK_H_
