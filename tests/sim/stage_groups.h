// What the ranks of each stage and decode service make together in an epoch, seen from outside: who
// is connected to the others, who takes the group for formed, which steps they run, and what comes
// of one. A witness of the groups, and the memory of the steps that ranks compute together.
#ifndef TESTS_SIM_STAGE_GROUPS_H_
#define TESTS_SIM_STAGE_GROUPS_H_

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "common/types/instance.h"
#include "services/prefill/core/stage.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class StageGroups {
 public:
  StageGroups(World& world, const Topology& topology) : world_(world), topology_(topology) {}

  // The group of a stage, or of a decode service, in an epoch.
  struct Key {
    Role role = Role::kPrefill;
    int chain = 0;  // Or service.
    int stage = 0;
    uint64_t epoch = 0;
    auto operator<=>(const Key&) const = default;
  };
  static Key KeyOf(const Topology& topology, int node, uint64_t epoch);

  void Connected(const Key& key, int rank);
  // No rank takes a group for formed before every other rank is connected in it.
  void Formed(const Key& key, int rank);
  // A rank that is ready has its group.
  void CheckReady(const Key& key, int rank) const;
  // A stage of a chain or service that is up has its whole group: an epoch is never half-formed.
  void CheckUp(const Key& key) const;
  // All ranks are given the same steps, of which the digest says what they are.
  void Submitted(const Key& key, uint64_t number, uint64_t digest);

  // What comes of a step: of each of its items, by token, what the layers have made of it; and how
  // long that takes.
  struct Step {
    std::vector<std::vector<uint64_t>> x;
    int64_t cost_us = 0;
  };
  // nullptr: not computed yet.
  const Step* Find(const Key& key, uint64_t number) const;
  const Step* Add(const Key& key, uint64_t number, Step step);

 private:
  struct Group {
    std::set<int> connected;  // Ranks.
    std::set<int> formed;
    std::map<uint64_t, uint64_t> submitted;  // Plan -> what it is.
    std::map<uint64_t, Step> steps;          // By plan.
  };
  const Group* Of(const Key& key) const;
  size_t RanksOf(const Key& key) const {
    const bool decodes = key.role == Role::kDecode;
    return static_cast<size_t>(decodes ? topology_.decode_ranks : topology_.ranks);
  }

  World& world_;
  const Topology& topology_;
  std::map<Key, Group> groups_;  // For each chain's newest epoch, and the rest of the last.
};

// What a step is, as one number.
uint64_t DigestOf(const prefill::RunCompute& compute);

}  // namespace baton::sim

#endif  // TESTS_SIM_STAGE_GROUPS_H_
