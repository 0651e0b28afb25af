#include "tests/sim/topology.h"

namespace baton::sim {

Topology DrawTopology(Random& random) {
  Topology topology;
  topology.routers = random.Chance(0.4) ? static_cast<int>(random.Between(2, 3)) : 1;
  topology.stages = static_cast<int>(random.Between(1, 8));
  topology.chains = topology.stages <= 3 && random.Chance(0.4) ? 2 : 1;
  topology.layers = topology.stages + static_cast<int>(random.Below(5));
  topology.page_size = random.Chance(0.5) ? 16 : 64;
  topology.chunk_tokens = topology.page_size * static_cast<int>(random.Between(1, 8));
  // Pools from roomy to so small that requests queue for pages.
  const int pool = random.Chance(0.4) ? 40 : 160;
  topology.prefill_pages = pool;
  topology.decode_pages = pool + static_cast<int>(random.Below(40));
  topology.max_running = static_cast<int>(random.Between(2, 12));
  if (random.Chance(0.25)) topology.max_queued = static_cast<int>(random.Between(0, 3));
  if (random.Chance(0.5)) {
    topology.chunk_rule = random.Chance(0.7) ? ChunkRule::kOptimal : ChunkRule::kSglang;
  }
  topology.plan_window = topology.stages + static_cast<int>(random.Between(0, 3));
  topology.activation_credits = static_cast<int>(random.Between(1, 3));
  topology.plans_in_flight = static_cast<int>(random.Between(1, 4));
  topology.max_attempts = random.Chance(0.7) ? 2 : 1;
  constexpr router::Policy kPolicies[] = {
      router::Policy::kCost,           router::Policy::kLeastLoad,    router::Policy::kRoundRobin,
      router::Policy::kRandom,         router::Policy::kPowerOfTwo,   router::Policy::kCacheAware,
      router::Policy::kConsistentHash, router::Policy::kLengthBuckets};
  topology.policy = random.Chance(0.3) ? kPolicies[0] : kPolicies[random.Below(8)];
  topology.part_layers = static_cast<int>(random.Between(1, 12));
  topology.shares_plans = random.Chance(0.9);
  topology.new_names = random.Chance(0.2);
  topology.stranger = random.Chance(0.2);
  topology.lonely = random.Chance(0.15);
  topology.told_of_all = random.Chance(0.5) ? 64 : static_cast<int>(random.Below(8));
  topology.decodes += (topology.stranger ? 1 : 0) + (topology.lonely ? 1 : 0);
  topology.clock_skew_us = random.Chance(0.3) ? random.Between(1'000'000, 100'000'000) : 0;
  // Tiny pools and long computations: what is freed too early is used again while it matters.
  if (random.Chance(0.15)) {
    topology.prefill_pages = static_cast<int>(random.Between(12, 20));
    topology.decode_pages = static_cast<int>(random.Between(12, 24));
  }
  // Texts that outgrow their pools.
  if (random.Chance(0.6)) {
    topology.reserved_tokens = static_cast<int>(random.Between(1, topology.page_size));
    topology.grows_much = topology.page_size == 16 && random.Chance(0.5);
    if (topology.grows_much) topology.decode_pages = static_cast<int>(random.Between(12, 24));
  }
  if (random.Chance(0.2)) topology.step_us = random.Between(1000, 8000);
  // Longer prompts would still be queued when the probes come.
  if (topology.page_size == 16 && random.Chance(0.3)) {
    topology.compute_factor = static_cast<int>(random.Between(2, 12));
  } else if (topology.page_size == 16 && random.Chance(0.4)) {
    topology.changes_at_us = random.Between(1'000'000, 4'000'000);
    topology.unsteady = random.Chance(0.5);
  }
  if (random.Chance(0.3)) {
    const int pages = topology.page_size * topology.prefill_pages;
    topology.max_context_tokens = pages * 3 / 4 + static_cast<int>(random.Between(1, 30));
  }
  return topology;
}

void DrawRanks(Random& random, Topology& topology) {
  if (!random.Chance(0.3)) return;
  topology.ranks = random.Chance(0.6) ? 2 : 4;
  topology.kv_heads = 1 << random.Between(0, 2);  // Fewer than ranks, as many, or more.
  topology.slices = random.Chance(0.7);
  const int extra_layers = topology.layers - topology.stages;
  topology.stages = 1 + topology.stages % (topology.ranks == 2 ? 3 : 2);
  topology.layers = topology.stages + extra_layers;
  if (topology.members() > 4) topology.chains = 1;
  topology.plan_window = topology.stages + static_cast<int>(random.Between(0, 3));
}

void DrawDecodeRanks(Random& random, Topology& topology) {
  if (!random.Chance(0.27)) return;
  topology.decode_ranks = random.Chance(0.6) ? 2 : 4;
  if (topology.ranks == 1) topology.kv_heads = 1 << random.Between(0, 2);
  // Many processes: the services that serve are two or, of four ranks, mostly one.
  if (topology.decode_ranks == 4 && random.Chance(0.6)) --topology.decodes;
  if (topology.members() > 4) topology.chains = 1;
}

void DrawDecodeStages(Random& random, Topology& topology) {
  if (!random.Chance(0.27) || topology.layers < 2) return;
  topology.decode_stages = random.Chance(0.6) || topology.layers < 3 ? 2 : 3;
  if (topology.decode_ranks == 4) topology.decode_ranks = 2;
  const int serving = topology.decodes - (topology.stranger ? 1 : 0) - (topology.lonely ? 1 : 0);
  if (topology.decode_members() > 3 && serving > 1) --topology.decodes;
  if (topology.members() > 4) topology.chains = 1;
}

void DrawColocated(Random& random, Topology& topology) {
  if (random.Chance(0.25)) topology.colocated = 1;
}

StageCost Topology::CostOf(int stage) const {
  const double layers = StageLayers(stage).size();
  const StageCost fast = {.overhead_us = 100,
                          .prefix_us = layers / 50,
                          .token_us = 4 * layers,
                          .attention_us = layers / 400};
  return fast.Times(compute_factor);
}

}  // namespace baton::sim
