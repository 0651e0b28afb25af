// A failure is made small: what it does not need is left out.
#include "tests/sim/shrink.h"

#include <gtest/gtest.h>

#include "tests/sim/cluster.h"

namespace baton::sim {
namespace {

constexpr char kAnswers[] = "a client is answered";

// Stands in for a broken promise, since no run of the cores as they are breaks one. A run's
// requests are the scenario's and those that probe the healed cluster.
std::string AnswersOne(const Scenario& scenario) {
  const RunResult run = RunScenario(scenario, /*trace=*/false);
  const int probes = run.requests - static_cast<int>(scenario.clients.size());
  return run.succeeded > probes ? kAnswers : "";
}

TEST(ShrinkTest, LeavesWhatTheFailureNeeds) {
  const Scenario scenario = DrawScenario(7);
  ASSERT_EQ(AnswersOne(scenario), kAnswers);
  ASSERT_GT(scenario.clients.size(), 1U);
  const Shrunken shrunken = Shrink(scenario, kAnswers, AnswersOne);
  EXPECT_EQ(AnswersOne(shrunken.scenario), kAnswers) << shrunken.scenario.Description();
  EXPECT_EQ(shrunken.scenario.clients.size(), 1U) << shrunken.scenario.Description();
  EXPECT_TRUE(shrunken.scenario.faults.empty()) << shrunken.scenario.Description();
  EXPECT_EQ(shrunken.scenario.topology.routers, 1);
  EXPECT_EQ(shrunken.scenario.topology.chains, 1);
  EXPECT_EQ(shrunken.scenario.topology.stages, 1);
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
