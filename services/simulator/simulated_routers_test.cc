// Several routers over the same chains, which know of one another's prompts by heartbeats alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "common/base/random.h"
#include "services/simulator/report.h"
#include "services/simulator/simulated_cluster_fixture.h"

namespace baton::simulator {
namespace {

// Conversations of eight turns, each of which begins with the one before and comes two seconds
// after it.
Workload Conversations(int count) {
  Workload workload = Asked({});
  Random random(5);
  int64_t fresh = 1;
  for (int conversation = 0; conversation < count; ++conversation) {
    WorkloadRequest turn;
    turn.arrival_us = static_cast<int64_t>(random.Below(10'000'000));
    for (int i = 0; i < 8; ++i) {
      for (int block = 0; block < 2; ++block) turn.hash_ids.push_back(fresh++);
      turn.prompt_tokens = 512 * static_cast<int>(turn.hash_ids.size());
      turn.output_tokens = 8;
      workload.requests.push_back(turn);
      turn.arrival_us += 2'000'000;
    }
  }
  std::stable_sort(workload.requests.begin(), workload.requests.end(),
                   [](const auto& a, const auto& b) { return a.arrival_us < b.arrival_us; });
  return workload;
}

TEST(SimulatedRoutersTest, FourRoutersFindWhatOneWould) {
  for (const bool colocated : {false, true}) {
    ClusterShape shape = ShapeOf({2, 2});
    shape.chains = 4;
    shape.prefill.planner.caches = true;
    shape.policy = router::Policy::kCacheAware;  // Never weighs a cached page against a wait.
    shape.prefill.planner.decodes = colocated;
    shape.prefill.planner.max_open_requests = 64;
    shape.decodes = colocated ? 0 : 2;
    const Workload workload = Conversations(20);
    const auto ratio = [&](int routers) {
      shape.routers = routers;
      const RunRecord record = RunIt(shape, workload);
      const Summary summary = Summarize(record, {});
      EXPECT_EQ(summary.answered, summary.requests);
      return summary.cached_ratio;
    };
    const double one = ratio(1);
    EXPECT_GT(one, 0.6);
    EXPECT_GE(ratio(4), 0.98 * one) << colocated;
  }
}

}  // namespace
}  // namespace baton::simulator
