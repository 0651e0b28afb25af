// A process of a simulated decode service: rank 0, which is the service to routers, or a follower.
#ifndef TESTS_SIM_DECODE_RANK_H_
#define TESTS_SIM_DECODE_RANK_H_

#include <cstdint>

#include "services/links/core/hello.h"
#include "tests/sim/decode_kv.h"
#include "tests/sim/decode_steps.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class DecodeRank : public Process {
 public:
  // Told to stop: exits when it is drained.
  virtual void Drain(int64_t drain_us) = 0;
  virtual DecodeKv& kv() = 0;
  virtual DecodeSteps& steps() = 0;
};

// As links know a rank of a decode service of several.
inline links::ChainPlace DecodePlaceOf(const Topology& topology, int node,
                                       const InstanceRef& self) {
  links::ChainPlace place;
  place.chain_id = topology.DecodeId(node);
  place.layers = topology.layers;
  place.self = {self, {0, topology.layers}, topology.DecodeRankOf(node)};
  place.role = Role::kDecode;
  return place;
}

}  // namespace baton::sim

#endif  // TESTS_SIM_DECODE_RANK_H_
