// A simulated decode service, or the first process of one: the real ChainPlanner, TicketBook and
// Wiring above what every rank has (decode_rank.h). Or a colocated chain, which is the same without
// grants and tickets. A witness holds the planner to what its headers promise.
#ifndef TESTS_SIM_DECODE_PROCESS_H_
#define TESTS_SIM_DECODE_PROCESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/serial_events.h"
#include "services/decode/core/ticket_book.h"
#include "services/links/core/wiring.h"
#include "services/prefill/core/chain_planner.h"
#include "tests/sim/decode_rank.h"
#include "tests/sim/decode_witness.h"
#include "tests/sim/oracle.h"
#include "tests/sim/wiring_witness.h"

namespace baton::sim {

struct SimReserve {
  uint64_t attempt_id = 0;
  uint64_t prompt_id = 0;  // Stands for the prompt's tokens.
  int prompt_tokens = 0;
  int max_tokens = 0;
  std::vector<KvWriter> writers;
  int64_t timeout_us = 0;
  bool has_tokens = false;  // The service knows the prompt's ids.
  bool prompt_logprobs = false;
};

class DecodeProcess : public DecodeRank {
 public:
  DecodeProcess(World& world, const Topology& topology, Oracle& oracle, StageGroups& groups,
                int node, uint64_t incarnation);

  // Control plane.
  void Reserve(uint64_t call, const SimReserve& request);
  void Generate(uint64_t call, uint64_t attempt_id, uint64_t generation);
  void GenerateHere(uint64_t call, const SimReserve& request);  // Prefill.Generate.
  void Abort(uint64_t attempt_id);
  // From another member, on its link.
  void ReceiveFromFollower(const links::WiringEvent& event);
  void ReceiveReady(const links::StageReady& ready, uint64_t newest_generation);
  void ReceiveReport(int member, uint64_t epoch, const prefill::PlannerEvent& report);

  const Oracle::Sequence* SequenceOfGrant(uint64_t generation) const override {
    return witness_.SequenceOfGrant(generation);
  }
  void CallBroken(uint64_t call) override;
  absl::Status CheckInvariants() const override;
  bool AtRest(std::string& why_not) const override;

 private:
  // From Reserve to the request's end, as the shell's.
  struct Session {
    uint64_t reserve_call = 0;
    uint64_t stream_call = 0;
  };

  void OnLease(const LeaseEvent& event) override;
  void OnReport(uint64_t epoch, const prefill::PlannerEvent& report) override;
  void FailEpoch(const absl::Status& status) override {
    wiring_events_.Raise(links::ChainFailed{status});
  }

  void HandlePlanner(const prefill::PlannerEvent& event) { planner_events_.Raise(event); }
  void HandleInTurn(const prefill::PlannerEvent& event);
  void HandleOne(const prefill::PlannerEvent& event);
  void FreePages();
  using DecodeRank::Perform;
  void Perform(const prefill::IssuePlan& action);
  void Perform(const prefill::GrantKv& action);
  void Perform(const prefill::RevokeKv& action);
  void Perform(const prefill::HandOutTicket& action);
  void Perform(const prefill::DeliverToken& action);
  void Perform(const prefill::FinishRequest& action);
  void Perform(const prefill::FailChain& action);
  void Perform(const prefill::PromptDone& action);
  void Perform(const prefill::ObservePlan&) {}
  bool colocated() const { return topology_.IsColocated(node_); }
  void Submit(const SimReserve& request);
  void SendToken(uint64_t attempt_id, const SampledToken& token);
  void EndStream(uint64_t call, uint64_t attempt_id, const decode::TicketBook::Outcome& outcome);
  void OpenStaleStream(uint64_t attempt_id, uint64_t generation);
  void ScheduleTick();

  // The links to the others (decode_ranks.cc).
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
  void Perform(const links::TellOwnStage& action);
  void ScheduleWiringTick();
  void LinkBroken(uint64_t call);
  void SendOrder(int member, SimOrder order);
  void SendAll(const SimOrder& order);
  void KeepForLater(const links::WiringEvent& event);
  void ScheduleStale();
  void OnMembers();

  Oracle& oracle_;
  prefill::ChainPlanner planner_;
  decode::TicketBook book_;
  DecodeWitness witness_;
  FreedPages freed_;
  SerialEvents<prefill::PlannerEvent> planner_events_{
      [this](const prefill::PlannerEvent& event) { HandleInTurn(event); }};
  std::map<uint64_t, Session> sessions_;  // By attempt; those that the book holds.
  int64_t tick_us_ = kNeverUs;

  links::Wiring wiring_;
  WiringWitness wiring_witness_;
  SerialEvents<links::WiringEvent> wiring_events_{
      [this](const links::WiringEvent& event) { HandleWiring(event); }};
  uint64_t newest_generation_ = 0;
  std::map<int, uint64_t> links_;                 // Call by member.
  std::optional<prefill::PlannerEvent> in_hand_;  // From the ReportHeard being handled.
  std::vector<links::WiringEvent> stale_wiring_;
  int64_t wiring_tick_us_ = kNeverUs;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_DECODE_PROCESS_H_
