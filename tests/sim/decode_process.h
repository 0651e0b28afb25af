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
#include "services/prefill/core/chain_planner.h"
#include "tests/sim/decode_rank.h"
#include "tests/sim/decode_witness.h"
#include "tests/sim/oracle.h"
#include "tests/sim/sim_alarm.h"
#include "tests/sim/sim_wiring.h"

namespace baton::sim {

struct SimReserve {
  uint64_t attempt_id = 0;
  uint64_t prompt_id = 0;  // Stands for the prompt's tokens.
  int prompt_tokens = 0;
  int max_tokens = 0;
  std::vector<KvWriter> writers;
  int64_t timeout_us = 0;
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

  const Oracle::Sequence* SequenceOfGrant(uint64_t generation) const override {
    return witness_.SequenceOfGrant(generation);
  }
  SimWiring* wiring() override { return &wiring_; }
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
  void FailEpoch(const absl::Status& status) override { wiring_.Raise(links::ChainFailed{status}); }

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
  void Wake();

  // The links to the others (decode_ranks.cc).
  void OnUp(uint64_t epoch, int page_count);
  void OnDown(const absl::Status& status);
  void SendOrder(int member, SimOrder order);
  void SendAll(const SimOrder& order);
  void OnMembers();

  Oracle& oracle_;
  prefill::ChainPlanner planner_;
  decode::TicketBook book_;
  DecodeWitness witness_;
  FreedPages freed_;
  SerialEvents<prefill::PlannerEvent> planner_events_{
      [this](const prefill::PlannerEvent& event) { HandleInTurn(event); }};
  std::map<uint64_t, Session> sessions_;  // By attempt; those that the book holds.
  SimAlarm alarm_{world_, node_, "decode tick", [this] { Wake(); }};

  SimWiring wiring_;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_DECODE_PROCESS_H_
