// What decode_core.h promises, held against everything that a decode core hears and does: an
// account of its requests, pages and steps that is kept from outside, knows the right answers, and
// shares no code with the core.
#ifndef TESTS_SIM_DECODE_WITNESS_H_
#define TESTS_SIM_DECODE_WITNESS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "services/decode/core/decode_core.h"
#include "tests/sim/oracle.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class DecodeWitness {
 public:
  DecodeWitness(World& world, const Topology& topology, Oracle& oracle, InstanceRef self);

  // Whose the next reservation is.
  void Begin(uint64_t prompt_id) { prompt_id_ = prompt_id; }
  // Around every Handle. What is overdue has been ended before, by a Tick of its own.
  void Before(const decode::Event& event);
  void After(const std::vector<decode::Action>& actions, const decode::DecodeLoad& load);

  // Of a request that has not had its terminal action yet.
  const Oracle::Sequence& SequenceOf(uint64_t attempt_id) const;
  const Oracle::Sequence* SequenceOfGrant(uint64_t generation) const;

 private:
  struct Session {
    const Oracle::Sequence* sequence = nullptr;
    decode::ReserveRequested request;
    int64_t granted_us = 0;
    uint32_t slot = 0;
    uint64_t generation = 0;  // 0: waits.
    bool must_be_refused = false;
    bool revoked = false;
    bool committed = false;
    bool stream_open = false;
    int sampled = 0;
    int delivered = 0;

    bool granted() const { return generation != 0 && !revoked; }
    bool runs() const { return granted() && committed && stream_open; }
    bool complete() const { return sampled == static_cast<int>(sequence->answer.size()); }
  };
  struct Hold {
    int pages = 0;
    bool drained = false;
  };

  void Hear(const decode::ReserveRequested& event);
  void Hear(const decode::StreamOpened& event);
  void Hear(const decode::AbortRequested& event);
  void Hear(const decode::StepFinished& event);
  void Hear(const decode::DrainBegan& event);
  void Hear(const decode::Tick& event);
  void Hear(const KvCommitted& event);
  void Hear(const KvFailed& event);
  void Hear(const KvDrained& event);
  // Simulated decode services are one process.
  void Hear(const decode::RanksJoined&) {}
  void Hear(const decode::RanksLost&) {}
  void Hear(const decode::FollowerGranted&) {}
  void Hear(const decode::FollowerHeard&) {}

  void See(const decode::ReplyReserve& action);
  void See(const decode::GrantKv& action);
  void See(const decode::RevokeKv& action);
  void See(const decode::DeliverToken& action);
  void See(const decode::RefuseStream& action);
  void See(const decode::Finish& action);
  void See(const decode::RunStep& action);
  void See(const decode::PartRanks&) {}
  void SeeTicket(Session& session, const Ticket& ticket);
  void SeeSequence(const decode::RunStep::Sequence& sequence);

  void CheckExpected();
  void CheckSessions(const decode::DecodeLoad& load);
  void CheckPages(const decode::DecodeLoad& load);

  Session* Find(uint64_t attempt_id);
  Session* FindGrant(uint64_t generation);
  bool Own(int page, uint64_t generation);
  void ReleaseIfUnused(uint64_t generation);
  void Complain(uint64_t attempt_id, const std::string& what);

  World& world_;
  const Topology& topology_;
  Oracle& oracle_;
  const InstanceRef self_;
  uint64_t prompt_id_ = 0;
  bool draining_ = false;
  std::map<uint64_t, Session> sessions_;  // By attempt.
  std::map<uint64_t, uint64_t> grants_;   // Generation -> attempt, until it is revoked.
  std::deque<uint64_t> waiting_;          // Attempts, in the order of their arrival.
  std::set<uint64_t> early_aborts_;
  std::map<uint64_t, Hold> holds_;        // By generation: revoked, its pages not free yet.
  std::map<int, uint64_t> owners_;        // Page -> generation, of the pages that were seen.
  std::map<uint64_t, uint64_t> in_step_;  // Generation -> attempt.
  std::optional<uint64_t> running_step_;
  uint64_t last_step_ = 0;
  uint64_t last_generation_ = 0;
  std::optional<KvGrant> grant_;  // Whose ticket must follow.

  // What this Handle must do.
  std::set<uint64_t> tokens_due_;                // Attempts.
  std::set<uint64_t> failures_due_;              // Attempts that must end with an error.
  std::set<uint64_t> revokes_due_;               // Generations.
  std::optional<absl::StatusCode> refusal_due_;  // Of the stream.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_DECODE_WITNESS_H_
