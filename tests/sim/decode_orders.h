// Rank 0's orders on their way to a follower: as its core hears them, and some that make no sense
// there. Plays services/decode/ranks/messages.
#ifndef TESTS_SIM_DECODE_ORDERS_H_
#define TESTS_SIM_DECODE_ORDERS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/random.h"
#include "services/decode/core/decode_core.h"
#include "services/decode/core/follower.h"
#include "tests/sim/topology.h"

namespace baton::sim {

decode::Order OrderOf(const decode::GrantKv& grant);
decode::Order OrderOf(const decode::RevokeKv& revoke);
decode::Order OrderOf(const decode::RunStep& step);

// A follower's orders in this epoch, as far as invalid orders depend on them.
struct OrderContext {
  uint64_t newest_generation = 0;  // 0: none yet.
  struct Grant {
    uint32_t slot = 0;
    std::vector<int> pages;
  };
  std::map<uint64_t, Grant> grants;  // That stand, by generation.
  bool stepped = false;

  void Saw(const decode::Order& order);
};

// The same order with one thing wrong, mostly by the least there is.
decode::Order Garble(Random& random, const Topology& topology, int node,
                     const OrderContext& context, decode::Order order);

}  // namespace baton::sim

#endif  // TESTS_SIM_DECODE_ORDERS_H_
