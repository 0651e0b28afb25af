// The simulation catches every planted bug, so it would catch the same mistake in the code.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/sim/bugs.h"
#include "tests/sim/cluster.h"

namespace baton::sim {
namespace {

constexpr uint64_t kSeedLimit = 3000;

class PlantedBugTest : public testing::TestWithParam<NamedBug> {};

TEST_P(PlantedBugTest, IsCaught) {
  for (uint64_t seed = 1; seed <= kSeedLimit; ++seed) {
    const RunResult result = RunSeed(seed, GetParam().bug, /*trace=*/false);
    if (result.violation.empty()) continue;
    std::printf("caught by seed %llu: %s\n", static_cast<unsigned long long>(seed),
                result.violation.c_str());
    return;
  }
  FAIL() << GetParam().name << " was not caught in " << kSeedLimit << " seeds";
}

INSTANTIATE_TEST_SUITE_P(Bugs, PlantedBugTest, testing::ValuesIn(kPlantedBugs),
                         [](const auto& info) {
                           std::string name(info.param.name);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace baton::sim
