// One simulated run: a scenario's cluster, its clients and faults, healing, and the final
// examination. The whole run is a function of its scenario, and the scenario of its seed.
#ifndef TESTS_SIM_CLUSTER_H_
#define TESTS_SIM_CLUSTER_H_

#include <cstdint>
#include <deque>
#include <string>

#include "tests/sim/scenario.h"

namespace baton::sim {

struct RunResult {
  uint64_t seed = 0;
  uint64_t hash = 0;
  uint64_t events = 0;
  int requests = 0;
  int succeeded = 0;
  std::string violation;  // Empty: every promise was kept.
  std::string summary;    // The cluster and its faults, in a line.
  std::deque<std::string> trace;
};

// The trace is kept only if asked for.
RunResult RunScenario(const Scenario& scenario, bool trace);
RunResult RunSeed(uint64_t seed, bool trace);

}  // namespace baton::sim

#endif  // TESTS_SIM_CLUSTER_H_
