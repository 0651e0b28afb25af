// What the runs of this process have reached: every mark of the cores (common/base/coverage.h),
// every kind of fault that struck, every weather, every way a request ended, every refusal of KV.
// A row that stays thin is a state that the simulation says nothing about.
#ifndef TESTS_SIM_COVERAGE_H_
#define TESTS_SIM_COVERAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/kv/lease_table.h"
#include "tests/sim/scenario.h"
#include "tests/sim/world.h"

namespace baton::sim {

// Hits that every row needs in 2,000 seeds, unless it is excused.
inline constexpr uint64_t kLeastHits = 20;
inline constexpr uint64_t kSeedsOfLeastHits = 2000;

struct CoverageRow {
  std::string name;
  uint64_t hits = 0;
  const char* excuse = nullptr;  // Why it may be thin; nullptr: it may not.
};

void CountRun(Weather weather);
void CountFault(FaultKind kind);
void CountNetworkFault(double NetworkFaults::*chance);
void CountRefusal(KvRefusal refusal);
void CountOutcome(const absl::Status& status);

uint64_t CountedRuns();
std::vector<CoverageRow> Coverage();  // By name.
// Rows with too few hits for as many runs as were counted.
std::vector<CoverageRow> ThinRows();

}  // namespace baton::sim

#endif  // TESTS_SIM_COVERAGE_H_
