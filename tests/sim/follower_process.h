// A simulated process of a decode service that is not its first: the real Link above what every one
// has (decode_rank.h). It decides nothing about requests.
#ifndef TESTS_SIM_FOLLOWER_PROCESS_H_
#define TESTS_SIM_FOLLOWER_PROCESS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/serial_events.h"
#include "services/links/core/link.h"
#include "services/links/core/wiring.h"
#include "tests/sim/decode_rank.h"
#include "tests/sim/link_witness.h"

namespace baton::sim {

class FollowerProcess : public DecodeRank {
 public:
  FollowerProcess(World& world, const Topology& topology, StageGroups& groups, int node,
                  uint64_t incarnation);

  // From rank 0, on a link, which is that call.
  void ReceiveHello(uint64_t call, const links::Hello& hello);
  // `nonsense`: an invalid order: rank 0 has not given it, or only once.
  void ReceiveOrder(uint64_t call, const SimOrder& order, bool nonsense);
  void ReceivePing(const links::PingHeard& ping) { link_events_.Raise(ping); }
  void ReceiveGroup(uint64_t call, const Rendezvous::Message& message);

  void CallBroken(uint64_t call) override;

 private:
  void OnLease(const LeaseEvent& event) override;
  void OnReport(uint64_t epoch, const prefill::PlannerEvent& report) override;
  void FailEpoch(const absl::Status& status) override {
    link_events_.Raise(links::StageFailed{status});
  }
  const Oracle::Sequence* SequenceOfGrant(uint64_t generation) const override;
  void Take(const prefill::Plan& plan) { HandleStage(prefill::PlanArrived{plan}); }
  void Take(const KvGrant& grant);
  void Take(const prefill::RevokeKv& revoke);

  void HandleLink(const links::LinkEvent& event);
  using DecodeRank::Perform;
  void Perform(const links::TryEpoch& action);
  void Perform(const links::FormGroup& action);
  void Perform(const links::SendReady& action);
  void Perform(const links::SendPong& action);
  void Perform(const links::TakeWork& action);
  void Perform(const links::PassNextStageDone& action) {
    HandleStage(prefill::NextStageDone{action.epoch, action.number});
  }
  void Perform(const links::DropEpoch& action);
  void Perform(const links::RefuseLink& action);
  void Perform(const links::EndLink& action) { world_.BreakCall(action.link); }
  void ScheduleLinkTick();
  void Tell(uint64_t call, const char* label, const links::WiringEvent& event);
  // Keeps an event to replay after its epoch is over, when it must have no effect.
  void KeepForLater(const links::LinkEvent& event);
  void ScheduleStale();
  int LeaderNode() const { return topology_.DecodeNode(topology_.DecodeOf(node_)); }

  links::Link link_;
  LinkWitness link_witness_;
  SerialEvents<links::LinkEvent> link_events_{
      [this](const links::LinkEvent& event) { HandleLink(event); }};
  std::optional<SimOrder> arriving_;  // From the WorkHeard being handled.
  std::vector<links::LinkEvent> stale_link_;
  int64_t link_tick_us_ = kNeverUs;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_FOLLOWER_PROCESS_H_
