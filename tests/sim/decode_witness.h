// What planner_grants.cc and planner_growth.cc promise of a decode service, held against everything
// that its planner hears and does: an account of its requests, grants and tokens that is kept from
// outside, knows the right answers, and shares no code with the planner.
#ifndef TESTS_SIM_DECODE_WITNESS_H_
#define TESTS_SIM_DECODE_WITNESS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "services/prefill/core/chain_planner.h"
#include "tests/sim/oracle.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class DecodeWitness {
 public:
  DecodeWitness(World& world, const Topology& topology, Oracle& oracle, InstanceRef self)
      : world_(world), topology_(topology), oracle_(oracle), self_(std::move(self)) {}

  // Whose the next request is.
  void Begin(uint64_t prompt_id) { prompt_id_ = prompt_id; }
  // Around every Handle. What is overdue has been ended before, by a Tick of its own.
  void Before(const prefill::PlannerEvent& event);
  void After(const std::vector<prefill::PlannerAction>& actions,
             const prefill::ChainPlanner& planner);

  // The sequence of an attempt, also of one that has ended.
  const Oracle::Sequence* SequenceOf(uint64_t attempt_id) const;
  // That whose grant stands; nullptr: none's any more.
  const Oracle::Sequence* SequenceOfGrant(uint64_t generation) const;

 private:
  struct Session {
    const Oracle::Sequence* sequence = nullptr;
    prefill::StartRequested request;
    uint64_t order = 0;       // In which they came.
    uint64_t generation = 0;  // 0: never granted.
    bool ticket = false;
    bool opened = false;  // Holds pages.
    bool told = false;    // The stages know of it.
    bool read_here = false;
    int delivered = 0;

    bool begun() const { return generation != 0; }
  };
  struct Grant {
    uint64_t attempt_id = 0;
    uint32_t slot = 0;
    std::vector<int> pages;
    std::set<int> not_granted;  // Members, as the next two.
    std::set<int> not_committed;
    std::set<int> not_drained;
    bool revoked = false;
    bool bad_token = false;
  };

  void Hear(const prefill::StartRequested& event);
  void Hear(const prefill::AbortRequested& event) { MustEnd(event.attempt_id); }
  void Hear(const prefill::DrainBegan& event);
  void Hear(const prefill::ChainUp& event);
  void Hear(const prefill::ChainDown& event);
  void Hear(const prefill::MemberGranted& event);
  void Hear(const prefill::KvHeard& event);
  void Hear(const prefill::StagePlanDone& event);
  template <typename Other>
  void Hear(const Other&) {}

  void See(const prefill::IssuePlan& action);
  void See(const prefill::DeliverToken& action);
  void See(const prefill::FinishRequest& action);
  void See(const prefill::GrantKv& action);
  void See(const prefill::RevokeKv& action);
  void See(const prefill::HandOutTicket& action);
  template <typename Other>
  void See(const Other&) {}

  void SeeOpen(Session& session, const prefill::PlanOpen& open);
  void SeeItem(Session& session, const prefill::PlanItem& item);
  void CheckGrant(const Session& session, const Grant& grant, const prefill::GrantKv& action);
  void CheckPages(const Session& session, const std::vector<int>& pages, uint64_t owner);
  void SeeRetraction(Session& session);
  bool IsCommitted(const Session& session) const;
  void CheckEnd(const Session& session, const prefill::FinishRequest& action);
  void CheckWaiting(const prefill::ChainPlanner& planner);
  void MustEnd(uint64_t attempt_id);
  Session* Find(uint64_t attempt_id);
  std::set<int> AllMembers(int first) const;
  int PagesFor(int tokens) const {
    return (tokens + topology_.page_size - 1) / topology_.page_size;
  }
  void Complain(uint64_t attempt_id, const std::string& what);

  World& world_;
  const Topology& topology_;
  Oracle& oracle_;
  const InstanceRef self_;
  uint64_t prompt_id_ = 0;
  uint64_t arrivals_ = 0;
  bool up_ = false;
  uint64_t epoch_ = 0;
  bool draining_ = false;
  int page_count_ = 0;
  uint64_t last_generation_ = 0;
  std::map<uint64_t, Session> sessions_;   // By attempt.
  std::map<uint64_t, uint64_t> prompts_;   // By attempt, of all that ever were.
  std::map<uint64_t, Grant> grants_;       // By generation, until it is drained.
  std::map<int, uint64_t> granted_pages_;  // Page -> generation, of these.
  std::set<uint64_t> ends_due_;            // Attempts: in this Handle.
  std::set<uint64_t> may_end_;             // Attempts whose draw has failed.
  std::optional<uint64_t> asked_;          // Attempt: in this Handle.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_DECODE_WITNESS_H_
