// What decode_core.h promises, held against everything that a decode core hears and does: an
// account of its requests, pages and steps that is kept from outside, knows the right answers, and
// shares no code with the core.
#ifndef TESTS_SIM_DECODE_WITNESS_H_
#define TESTS_SIM_DECODE_WITNESS_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/decode/core/decode_core.h"
#include "tests/sim/oracle.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

// The first of what may be there several times. False: there is none.
inline bool ForgetOne(std::deque<uint64_t>& remembered, uint64_t id) {
  const auto found = std::find(remembered.begin(), remembered.end(), id);
  if (found == remembered.end()) return false;
  remembered.erase(found);
  return true;
}

class DecodeWitness {
 public:
  DecodeWitness(World& world, const Topology& topology, Oracle& oracle, InstanceRef self);

  // Whose the next reservation is.
  void Begin(uint64_t prompt_id) { prompt_id_ = prompt_id; }
  // A follower that is linked has had grants up to this generation, of a former life of rank 0 too.
  void FollowerHad(uint64_t generation) {
    taken_elsewhere_ = std::max(taken_elsewhere_, generation);
  }
  // Around every Handle. What is overdue has been ended before, by a Tick of its own.
  void Before(const decode::Event& event);
  void After(const std::vector<decode::Action>& actions, const decode::DecodeCore& core);

  // The sequence of a request without its terminal action yet.
  const Oracle::Sequence& SequenceOf(uint64_t attempt_id) const;
  const Oracle::Sequence* SequenceOfGrant(uint64_t generation) const;
  // The generation of who is held and has no ticket; 0: it has none either.
  std::optional<uint64_t> WaitsWith(uint64_t attempt_id) const;

 private:
  struct Session {
    const Oracle::Sequence* sequence = nullptr;
    decode::ReserveRequested request;
    int64_t granted_us = 0;
    uint32_t slot = 0;
    uint64_t generation = 0;      // 0: waits.
    std::set<int> not_granted;    // Followers whose table does not take its KV yet.
    std::set<int> not_committed;  // Ranks that have not said that its KV is there.
    bool bad_first_token = false;
    bool ticket = false;
    bool must_be_refused = false;
    bool queue_full = false;  // For which it is.
    bool revoked = false;
    bool committed = false;
    bool stream_open = false;
    int sampled = 0;
    int delivered = 0;
    int pages = 0;  // That it has; 0: it waits.
    bool retracted = false;

    bool granted() const { return generation != 0 && !revoked; }
    bool runs() const { return granted() && committed && stream_open; }
    bool complete() const { return sampled == static_cast<int>(sequence->answer.size()); }
  };
  struct Hold {
    uint32_t slot = 0;
    int pages = 0;
    std::set<int> not_drained;  // Ranks.
  };
  // Who has given its pages back in this Handle.
  struct Ended {
    uint64_t attempt_id = 0;
    bool resumes = false;
    bool explained = false;  // By its end, or by what was heard.
    bool lacked = false;     // A page for its next token.
  };

  void Hear(const decode::ReserveRequested& event);
  void Hear(const decode::StreamOpened& event);
  void Hear(const decode::AbortRequested& event);
  void Hear(const decode::StepFinished& event);
  void Hear(const decode::DrainBegan& event);
  void Hear(const decode::FlushCache& /*event*/) {}  // Nothing is cached here.
  void Hear(const decode::Tick& event);
  void Hear(const KvCommitted& event);
  void Hear(const KvFailed& event);
  void Hear(const KvDrained& event);
  void Hear(const decode::RanksJoined& event);
  void Hear(const decode::RanksLost& event);
  void Hear(const decode::FollowerGranted& event);
  void Hear(const decode::FollowerHeard& event);
  void HearCommitted(int rank, const KvCommitted& event);
  void HearDrained(int rank, const KvDrained& event);

  void See(const decode::ReplyReserve& action);
  void See(const decode::GrantKv& action);
  void See(const decode::RevokeKv& action);
  void See(const decode::DeliverToken& action);
  void See(const decode::RefuseStream& action);
  void See(const decode::Finish& action);
  void See(const decode::RunStep& action);
  void See(const decode::PartRanks& action);
  void SeeTicket(Session& session, const Ticket& ticket);
  void CheckGrant(const Session& session, const decode::GrantKv& action);
  int page_count() const;
  std::set<int> AllRanks(int first = 0) const;
  std::pair<int, int> CountPages() const;  // Owned and held back.
  bool HasRoomFor(const Session& session) const;
  void SeeSequence(const decode::RunStep::Sequence& sequence);
  // What it takes for later tokens, and who gives way (decode_witness_growth.cc).
  int PagesAtFirst(const Session& session) const;
  int PagesFor(int tokens) const;
  bool Lacks(const Session& session) const;
  void SeeGrowth(Session& session, const decode::RunStep::Sequence& sequence);
  void SeeEnd(uint64_t generation, const absl::Status& status);
  void CheckGrowth(bool between);
  void CheckRetractions(int wanted);

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
  std::deque<uint64_t> early_aborts_;     // Oldest first.
  std::map<uint64_t, Hold> holds_;        // By generation: revoked, its pages not free yet.
  std::map<int, uint64_t> owners_;        // Page -> generation, of the pages that were seen.
  std::map<uint64_t, uint64_t> in_step_;  // Generation -> attempt.
  std::optional<uint64_t> running_step_;
  uint64_t last_step_ = 0;
  uint64_t last_generation_ = 0;
  uint64_t taken_elsewhere_ = 0;
  bool joined_ = false;
  bool ever_joined_ = false;
  bool rows_want_ = false;  // A page, when the last step began.
  std::vector<InstanceRef> followers_;
  std::optional<decode::GrantKv> grant_;  // Rank 0's grant, while the other ranks' are to follow.
  int granted_ranks_ = 0;

  // What this Handle must do.
  std::set<uint64_t> tokens_due_;                // Attempts.
  std::set<uint64_t> failures_due_;              // Attempts that must end with an error.
  std::set<uint64_t> revokes_due_;               // Generations.
  std::optional<absl::StatusCode> refusal_due_;  // Expected status of a refused stream.
  decode::StreamOpened opened_;                  // It.
  std::optional<uint64_t> asked_;                // Attempt, whose reservation it is.
  std::set<uint64_t> tickets_due_;               // Attempts.
  bool part_due_ = false;
  std::map<uint64_t, Ended> ended_;  // By generation.
  uint64_t generation_before_ = 0;
  uint64_t youngest_grown_ = 0;  // Generation.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_DECODE_WITNESS_H_
