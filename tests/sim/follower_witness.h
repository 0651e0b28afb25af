// What follower.h promises, held against everything that a follower's core hears and does: an
// account from outside that shares no code with it.
#ifndef TESTS_SIM_FOLLOWER_WITNESS_H_
#define TESTS_SIM_FOLLOWER_WITNESS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "services/decode/core/follower.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class FollowerWitness {
 public:
  FollowerWitness(World& world, const Topology& topology, std::string self, TensorRank rank)
      : world_(world), topology_(topology), self_(std::move(self)), rank_(rank) {}

  // Called around every Handle. `nonsense`: an invalid order, which must only end the epoch.
  void Before(const decode::FollowerEvent& event, bool nonsense);
  void After(const std::vector<decode::FollowerAction>& actions, const decode::Follower& core);

  // Pages of the grants that have drained since this was asked last.
  std::vector<int> TakeFreed() { return std::exchange(freed_, {}); }

 private:
  struct Grant {
    decode::GrantOrder order;
    bool revoked = false;
  };
  struct Step {
    uint64_t number = 0;
    std::vector<std::pair<uint32_t, uint64_t>> granted_after;  // Slot and generation.
  };

  void Hear(const decode::EpochBegan& event);
  void Hear(const decode::OrderHeard& event);
  void Hear(const decode::FollowerStepEnded& event);
  void Hear(const decode::LeaseHeard& event);
  void Hear(const decode::EpochOver& event);
  void Obey(const decode::GrantOrder& order);
  void Obey(const decode::RevokeOrder& order);
  void Obey(const decode::StepOrder& order);
  void CheckWriters(const decode::GrantOrder& order);
  void MustTell(uint32_t slot, uint64_t generation);
  void Complain(const std::string& what) { world_.Violate(self_ + ": " + what); }

  World& world_;
  const Topology& topology_;
  const std::string self_;
  const TensorRank rank_;
  bool begun_ = false;
  bool nonsense_ = false;
  uint64_t newest_generation_ = 0;
  std::map<uint32_t, Grant> grants_;  // By slot, until it has drained.
  std::deque<Step> steps_;            // With the executor.
  std::vector<int> freed_;
  std::vector<std::string> due_;  // What this Handle must do, in order.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_FOLLOWER_WITNESS_H_
