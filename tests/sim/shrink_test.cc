// A failure is made small: one request and one cause are left of a planted bug.
#include "tests/sim/shrink.h"

#include <gtest/gtest.h>

#include "tests/sim/cluster.h"

namespace baton::sim {
namespace {

// The first seed that catches the bug.
RunResult Caught(Bug bug) {
  for (uint64_t seed = 1; seed < 200; ++seed) {
    RunResult result = RunSeed(seed, bug, /*trace=*/false);
    if (!result.violation.empty()) return result;
  }
  return {};
}

TEST(ShrinkTest, LeavesWhatTheFailureNeeds) {
  const Bug bug = Bug::kOutboxTrustsSent;  // One stage is enough.
  const RunResult caught = Caught(bug);
  ASSERT_FALSE(caught.violation.empty());
  const Shrunken shrunken = Shrink(DrawScenario(caught.seed), caught.violation, bug);
  const RunResult again = RunScenario(shrunken.scenario, bug, /*trace=*/false);
  EXPECT_FALSE(again.violation.empty()) << shrunken.scenario.Description();
  EXPECT_LE(shrunken.scenario.clients.size(), 1U) << shrunken.scenario.Description();
  EXPECT_TRUE(shrunken.scenario.faults.empty()) << shrunken.scenario.Description();
  EXPECT_EQ(shrunken.scenario.topology.routers, 1);
  EXPECT_EQ(shrunken.scenario.topology.chains, 1);
  EXPECT_EQ(shrunken.scenario.topology.stages, 1);
  EXPECT_TRUE(RunScenario(shrunken.scenario, Bug::kNone, /*trace=*/false).violation.empty());
}

TEST(ShrinkTest, FaultsFollowTheirNodesIntoASmallerCluster) {
  Scenario scenario;
  scenario.topology.routers = 2;
  scenario.topology.decodes = 2;
  scenario.topology.stages = 3;
  Topology smaller = scenario.topology;
  smaller.routers = 1;
  smaller.stages = 2;
  const Topology& before = scenario.topology;
  for (const int node : {1, before.DecodeNode(1), before.StageNode(0, 1), before.StageNode(0, 2)}) {
    scenario.faults.push_back({.kind = FaultKind::kKill, .node = node});
  }
  scenario.faults.push_back({.kind = FaultKind::kDnsFails, .node = -1});
  const Scenario result = WithShape(scenario, smaller);
  ASSERT_EQ(result.faults.size(), 3U);
  EXPECT_EQ(result.faults[0].node, smaller.DecodeNode(1));
  EXPECT_EQ(result.faults[1].node, smaller.StageNode(0, 1));
  EXPECT_EQ(result.faults[2].node, -1);
}

}  // namespace
}  // namespace baton::sim
