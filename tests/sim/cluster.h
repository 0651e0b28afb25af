// One simulated run: a cluster drawn from the seed, a workload, faults, healing, and the final
// examination. The whole run is a function of (seed, bug).
#ifndef TESTS_SIM_CLUSTER_H_
#define TESTS_SIM_CLUSTER_H_

#include <cstdint>
#include <deque>
#include <string>

#include "common/base/planted_bug.h"

namespace baton::sim {

struct RunResult {
  uint64_t seed = 0;
  uint64_t hash = 0;
  uint64_t events = 0;
  int requests = 0;
  int succeeded = 0;
  int kills = 0;
  std::string violation;  // Empty: every promise was kept.
  std::string summary;    // The cluster and its faults, in a line.
  std::deque<std::string> trace;
};

// Runs the cluster of `seed`, with `bug` planted. The trace is kept only if asked for.
RunResult RunSeed(uint64_t seed, Bug bug, bool trace);

}  // namespace baton::sim

#endif  // TESTS_SIM_CLUSTER_H_
