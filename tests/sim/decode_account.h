// What a decode service says of itself and of the ends of requests: the status of each refusal and
// failure, its load, what a drain has ended, when it wants to be woken. Held against all that its
// core hears, by an account that shares no code with it; decode_witness.h is about what it does.
#ifndef TESTS_SIM_DECODE_ACCOUNT_H_
#define TESTS_SIM_DECODE_ACCOUNT_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "services/decode/core/decode_core.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class DecodeAccount {
 public:
  DecodeAccount(World& world, const Topology& topology, InstanceRef self)
      : world_(world),
        topology_(topology),
        self_(std::move(self)),
        joined_(topology.decode_ranks == 1) {}

  // After every Handle.
  void Saw(const decode::Event& event, const std::vector<decode::Action>& actions,
           const decode::DecodeCore& core);

 private:
  // Why a request has to end in this event.
  struct Cause {
    absl::StatusCode code = absl::StatusCode::kOk;
    bool by_drain = false;
    // Whose fault it is; by itself, if not said.
    std::optional<std::string> leg = "decode";
    std::optional<std::string> instance;
  };
  struct Request {
    int64_t deadline_us = kNeverUs;
    bool resumes = false;
    std::string draws;  // Whose the first token is.
    bool bad_first_token = false;
    int64_t granted_us = 0;
    uint64_t generation = 0;      // 0: waits.
    bool ticket = false;          // Else it waits for followers.
    std::set<int> not_committed;  // Ranks.
    bool committed = false;
    bool revoked = false;
    bool stream_open = false;
    std::optional<Cause> kept;  // Its end, for its stream.
  };

  void Hear(const decode::ReserveRequested& event);
  void Hear(const decode::StreamOpened& event);
  void Hear(const decode::AbortRequested& event);
  void Hear(const decode::StepFinished& event);
  void Hear(const decode::DrainBegan& event);
  void Hear(const KvCommitted& event);
  void Hear(const KvFailed& event);
  void Hear(const decode::FollowerHeard& event);
  void Hear(const decode::RanksJoined& event);
  void Hear(const decode::RanksLost& event);
  void HearCommitted(int rank, const KvCommitted& event);
  // Ends now, or when its stream comes.
  void EndOrKeep(uint64_t attempt_id, Request& request, const Cause& cause);
  void Keep(uint64_t attempt_id);
  template <typename Other>
  void Hear(const Other&) {}
  void HearTime();

  void See(const decode::ReplyReserve& action);
  void See(const decode::GrantKv& action);
  void See(const decode::RevokeKv& action);
  void See(const decode::RunStep& action);
  void See(const decode::Finish& action);
  template <typename Other>
  void See(const Other&) {}

  Cause ByDrain() const;
  // Whether it may end so; the witness knows whether it must.
  bool IsRetractedRightly(const Request& request, const absl::Status& status) const;
  Cause Of(const absl::Status& status) const;
  void CheckEnd(uint64_t attempt_id, const absl::Status& status, const Cause& cause);
  void CheckLoad(const decode::DecodeCore& core);
  void CheckTimer(const decode::DecodeCore& core);
  void Complain(uint64_t attempt_id, const std::string& what);
  int CountWaiting() const;

  World& world_;
  const Topology& topology_;
  const InstanceRef self_;
  std::map<uint64_t, Request> requests_;  // By attempt.
  std::deque<uint64_t> early_aborts_;     // Oldest first.
  std::deque<uint64_t> kept_;             // Attempts with an end for their streams, oldest first.
  std::set<uint64_t> in_step_;            // Attempts.
  std::optional<Cause> step_failed_;
  std::vector<uint64_t> waiting_;  // Attempts, in the order of their arrival.
  bool joined_ = false;
  bool draining_ = false;
  int64_t drain_ends_us_ = kNeverUs;
  DrainCounts drained_;
  std::map<uint64_t, Cause> ends_due_;  // Due in this event, by attempt.
  std::optional<uint64_t> asked_;       // Attempt.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_DECODE_ACCOUNT_H_
