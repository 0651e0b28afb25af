// What chain_planner.h promises, held against everything that a planner hears and does: an account
// of its requests, plans and pages that is kept from outside and shares no code with the planner.
// How the tokens of plans are shared it holds against the header's rule
// (planner_shares_witness.cc).
#ifndef TESTS_SIM_PLANNER_WITNESS_H_
#define TESTS_SIM_PLANNER_WITNESS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/prefill/core/chain_planner.h"
#include "tests/sim/oracle.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class PlannerWitness {
 public:
  PlannerWitness(World& world, const Topology& topology, Oracle& oracle, std::string self,
                 const prefill::PlannerLimits& limits);

  // Whose the next start is.
  void Begin(uint64_t prompt_id) { prompt_id_ = prompt_id; }
  // Around every Handle.
  void Before(const prefill::PlannerEvent& event);
  void After(const std::vector<prefill::PlannerAction>& actions,
             const prefill::ChainPlanner& planner);

 private:
  struct Request {
    const Oracle::Sequence* sequence = nullptr;
    uint64_t order = 0;  // Arrival order.
    int64_t deadline_us = 0;
    bool prompt_logprobs = false;
    bool open = false;
    bool finished = false;
    bool failed = false;  // Finished with an error.
    bool abort_issued = false;
    int planned = 0;
    uint64_t last_plan = 0;
    std::map<std::pair<int, int>, bool> closed;  // (stage, rank) -> whether well.

    int left() const { return sequence->inputs.prompt_tokens - planned; }
    bool fully_planned() const { return left() == 0; }
  };

  void Hear(const prefill::ChainUp& event);
  void Hear(const prefill::ChainDown& event);
  void Hear(const prefill::StartRequested& event);
  void Hear(const prefill::AbortRequested& event);
  void Hear(const prefill::StagePlanDone& event);
  void Hear(const prefill::StageRequestClosed& event);
  void Hear(const prefill::DrainBegan& event);
  void Hear(const prefill::Tick& event);
  void Hear(const prefill::FlushCache& /*event*/) {}  // Nothing is cached here.
  // Nor is anything granted.
  void Hear(const prefill::MemberGranted& /*event*/) {}
  void Hear(const prefill::KvHeard& /*event*/) {}

  void See(const prefill::IssuePlan& action);
  void See(const prefill::FinishRequest& action);
  void See(const prefill::FailChain& action);
  void See(const prefill::ObservePlan& /*action*/) {}
  void See(const prefill::GrantKv&) { world_.Violate("a chain grants KV"); }
  void See(const prefill::RevokeKv&) { world_.Violate("a chain revokes KV"); }
  void See(const prefill::HandOutTicket&) { world_.Violate("a chain hands out a ticket"); }
  // The simulated requests have tickets.
  void See(const prefill::PromptDone& action) { Complain(action.attempt_id, "is decoded here"); }
  void See(const prefill::DeliverToken& action) { Complain(action.attempt_id, "is decoded here"); }
  void SeeOpen(const prefill::PlanOpen& open);
  void SeeItem(const prefill::Plan& plan, const prefill::PlanItem& item);
  void SeeShares(const prefill::Plan& plan);  // Before its items are taken down.
  uint64_t Leader() const;
  bool MayBegin(uint64_t attempt_id) const;
  void Learn(const std::vector<prefill::LearnedCost>& costs);
  double InPages(double tokens) const;
  // What a plan holds, in tokens of its leader's.
  struct Size {
    double planned = 0;
    double paid = 0;       // By others.
    double dearest = 0;    // A page of theirs.
    double next_page = 0;  // Price for a prompt that wants more.
  };
  Size SizeOf(const StageCost& measure, const prefill::Plan& plan, uint64_t leader,
              uint64_t wants) const;
  double PageMicros(const StageCost& measure, int begin, int tokens) const;
  uint64_t Wants(uint64_t leader, const std::map<uint64_t, int>& tokens) const;
  bool Shorter(const Request& one, const Request& other, int given = 0) const;
  void CheckWhole(const prefill::FinishRequest& action, const Request& request);

  void MustFail(uint64_t attempt_id);
  bool OverEverywhere(const Request& request) const;
  void Release();
  void CheckRequests();
  void CheckIdle(const prefill::PlannerLoad& load);
  void CheckPages(const prefill::PlannerLoad& load);
  void Complain(uint64_t attempt_id, const std::string& what);

  World& world_;
  const Topology& topology_;
  Oracle& oracle_;
  const std::string self_;
  const prefill::PlannerLimits limits_;
  uint64_t prompt_id_ = 0;
  bool up_ = false;
  bool draining_ = false;
  bool failed_ = false;  // FailChain is out.
  uint64_t epoch_ = 0;
  uint64_t issued_ = 0;
  uint64_t arrived_ = 0;
  double owed_tokens_ = 0;  // To prompts that are shorter than the leader.
  // What a prompt takes: of tokens alone, or the times that the planner knows, by stage.
  std::vector<StageCost> measures_;
  bool by_time_ = false;
  std::vector<std::vector<uint64_t>> ranks_done_;  // By stage and rank: last plan.
  std::vector<uint64_t> done_;                     // By stage: that all its ranks are done with.
  std::map<uint64_t, Request> requests_;           // By attempt, until its pages are free.
  std::deque<uint64_t> queue_;                     // Not open yet, in the order of arrival.
  std::map<int, uint64_t> owners_;                 // Page -> attempt.
  std::set<uint64_t> failures_due_;  // Attempts that this Handle must end with an error.
  std::set<uint64_t> starts_due_;    // Attempts that must not be refused without a reason.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_PLANNER_WITNESS_H_
