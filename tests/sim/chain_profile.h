// What stage 0 keeps of its chain's costs from one life to the next (--chunk-profile), on a disk
// that outlives it. Plays services/prefill/chain/profile_keeper.
#ifndef TESTS_SIM_CHAIN_PROFILE_H_
#define TESTS_SIM_CHAIN_PROFILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/chunking/chunk_profile.h"
#include "services/prefill/core/chain_planner.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class ChainProfile {
 public:
  // Reads what is there. Some files were written by hand, or of another model.
  ChainProfile(World& world, const Topology& topology, int node, std::string self);

  // Costs of stages with these layers; empty: the file has none.
  std::vector<KnownCost> Known(const std::vector<int>& stage_layers) const;

  // What the planner has learned, if that is all there is to learn.
  void Keep(const std::vector<prefill::LearnedCost>& learned);

 private:
  ChunkProfile Told() const;
  void Read();
  // What people write into such a file (profile_intruders.cc): read as it stands, or refused.
  void LetPeopleEdit(const ChunkProfile& good);
  void CheckDifferences(const MeasuredOn& here);
  void Complain(const std::string& what);

  World& world_;
  const Topology& topology_;
  const int node_;
  const std::string self_;
  std::optional<ChunkProfile> loaded_;  // If it holds here.
  uint64_t plans_kept_ = 0;
};

// As nlohmann's parser has the text: "" or the first field in which the two differ.
std::string DifferenceFromText(const ChunkProfile& profile, const std::string& text);

}  // namespace baton::sim

#endif  // TESTS_SIM_CHAIN_PROFILE_H_
