// A simulated decode service, or rank 0 of one: the real DecodeCore and LeaseTable, each on its own
// time line as on the loop and data threads, a kernel that computes on the pages it is told to, and
// of several ranks the wiring to the others (decode_ranks.cc). Witnesses hold the cores to what
// their headers promise.
#ifndef TESTS_SIM_DECODE_PROCESS_H_
#define TESTS_SIM_DECODE_PROCESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/serial_events.h"
#include "services/decode/core/decode_core.h"
#include "services/decode/core/roster.h"
#include "services/links/core/wiring.h"
#include "tests/sim/decode_account.h"
#include "tests/sim/decode_kv.h"
#include "tests/sim/decode_orders.h"
#include "tests/sim/decode_rank.h"
#include "tests/sim/decode_steps.h"
#include "tests/sim/decode_witness.h"
#include "tests/sim/oracle.h"
#include "tests/sim/sim_group.h"
#include "tests/sim/sim_memory.h"
#include "tests/sim/stage_groups.h"
#include "tests/sim/topology.h"
#include "tests/sim/wiring_witness.h"
#include "tests/sim/worker_drain.h"
#include "tests/sim/worker_membership.h"
#include "tests/sim/world.h"

namespace baton::sim {

struct SimReserve {
  uint64_t attempt_id = 0;
  uint64_t prompt_id = 0;  // Stands for the prompt's tokens.
  int prompt_tokens = 0;
  int max_tokens = 0;
  std::vector<KvWriter> writers;
  int64_t timeout_us = 0;
  bool resumes = false;
};

class DecodeProcess : public DecodeRank {
 public:
  DecodeProcess(World& world, const Topology& topology, Oracle& oracle, StageGroups& groups,
                int node, uint64_t incarnation);

  void Drain(int64_t drain_us) override { drain_->Begin(drain_us); }
  DecodeKv& kv() override { return kv_; }
  DecodeSteps& steps() override { return steps_; }
  // Control plane.
  void Reserve(uint64_t call, const SimReserve& request);
  void Generate(uint64_t call, uint64_t attempt_id, uint64_t generation);
  void Abort(uint64_t attempt_id);
  // From a follower, on its link.
  void ReceiveFromFollower(const links::WiringEvent& event);
  void ReceiveReady(const links::StageReady& ready, uint64_t newest_generation);
  void ReceiveReport(int rank, uint64_t epoch, const decode::Event& report);

  // The sequence that owns the grant; nullptr: none any more.
  const Oracle::Sequence* SequenceOfGrant(uint64_t generation) const {
    return witness_.SequenceOfGrant(generation);
  }
  WorkerMembership* worker() override { return membership_.get(); }
  SimGroup* ranks() override { return &group_; }
  void CallBroken(uint64_t call) override;
  void PeerClosed(const InstanceRef& peer, int64_t opened_us) override {
    membership_->PeerClosed(peer, opened_us);
  }
  absl::Status CheckInvariants() const override;
  bool AtRest(std::string& why_not) const override;

 private:
  // From Reserve to the request's terminal action, as the shell's.
  struct Session {
    uint64_t reserve_call = 0;
    uint64_t stream_call = 0;
  };

  void HandleCore(const decode::Event& event) { core_events_.Raise(event); }
  void HandleInTurn(const decode::Event& event);
  void HandleOne(const decode::Event& event);
  void HandleLease(const LeaseEvent& event);
  void Perform(const decode::ReplyReserve& action);
  void Perform(const decode::GrantKv& action);
  void Perform(const decode::RevokeKv& action);
  void Perform(const decode::DeliverToken& action);
  void Perform(const decode::RefuseStream& action);
  void Perform(const decode::Finish& action);
  void Perform(const decode::RunStep& step);
  void Perform(const decode::PartRanks& action);
  void OpenStaleStream(uint64_t attempt_id, uint64_t generation);
  // What no router of ours asks for (decode_intruders.cc).
  void LetIntrudersReserve(const decode::ReserveRequested& like);
  void ExpectRefused(const decode::ReserveRequested& request, absl::StatusCode code,
                     const char* words);
  decode::StepFinished FinishStep(const DecodeSteps::Ended& ended);
  void ScheduleTick();

  // The links to the followers (decode_ranks.cc).
  void HandleWiring(const links::WiringEvent& event);
  void Perform(const links::TryOwnEpoch& action);
  void Perform(const links::OpenLinks& action);
  void Perform(const links::FormOwnGroup& action);
  void Perform(const links::TellGroup& action);
  void Perform(const links::PingStages& action);
  void Perform(const links::CloseLinks& action);
  void Perform(const links::ReportChainUp& action);
  void Perform(const links::ReportChainDown& action);
  void Perform(const links::PassReport& action);
  template <typename Other>  // Actions for chains only.
  void Perform(const Other&) {
    world_.Violate(self_.id + " is wired as a prefill chain");
  }
  void ScheduleWiringTick();
  void LinkBroken(uint64_t call);
  void SendOrder(int rank, decode::Order order);
  void KeepForLater(const links::WiringEvent& event);
  void ScheduleStale();
  bool several() const { return topology_.decode_ranks > 1; }

  World& world_;
  const Topology& topology_;
  StageGroups& groups_;
  const int node_;
  const InstanceRef self_;
  decode::DecodeCore core_;
  DecodeWitness witness_;
  DecodeAccount account_;
  SimMemory memory_;
  FreedPages freed_;
  SimGroup group_;
  DecodeSteps steps_;
  DecodeKv kv_;
  std::unique_ptr<WorkerMembership> membership_;
  std::unique_ptr<WorkerDrain> drain_;
  SerialEvents<decode::Event> core_events_{
      [this](const decode::Event& event) { HandleInTurn(event); }};
  std::map<uint64_t, Session> sessions_;  // By attempt.
  uint64_t opening_call_ = 0;             // From the StreamOpened being handled.
  int64_t tick_us_ = kNeverUs;

  std::optional<links::Wiring> wiring_;
  std::optional<WiringWitness> wiring_witness_;
  SerialEvents<links::WiringEvent> wiring_events_{
      [this](const links::WiringEvent& event) { HandleWiring(event); }};
  decode::Roster roster_;
  std::vector<InstanceRef> ranks_;        // The epoch's ranks.
  std::map<int, uint64_t> links_;         // Call by rank.
  std::map<int, OrderContext> contexts_;  // What each follower has been told, by rank.
  std::optional<decode::Event> in_hand_;  // From the ReportHeard being handled.
  std::vector<links::WiringEvent> stale_wiring_;
  int64_t wiring_tick_us_ = kNeverUs;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_DECODE_PROCESS_H_
