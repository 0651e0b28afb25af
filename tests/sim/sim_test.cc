// Two thousand clusters a run: every promise kept, and the same seed gives the same events.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/sim/cluster.h"
#include "tests/sim/coverage.h"

namespace baton::sim {
namespace {

constexpr uint64_t kBatches = 40;
constexpr uint64_t kSeedsPerBatch = 50;

class SeedBatchTest : public testing::TestWithParam<uint64_t> {};

TEST_P(SeedBatchTest, KeepsEveryPromise) {
  int succeeded = 0;
  for (uint64_t i = 0; i < kSeedsPerBatch; ++i) {
    const uint64_t seed = 1 + GetParam() * kSeedsPerBatch + i;
    const RunResult result = RunSeed(seed, /*trace=*/false);
    succeeded += result.succeeded;
    if (result.violation.empty()) continue;
    const RunResult replay = RunSeed(seed, /*trace=*/true);
    FAIL() << "seed " << seed << ": " << result.violation << "\n"
           << result.summary << "\nreplay: bazel run //tests/sim:sim -- --seed=" << seed
           << " --shrink\n"
           << absl::StrJoin(replay.trace, "\n");
  }
  // A cluster that refuses everything would keep its promises too.
  EXPECT_GT(succeeded, static_cast<int>(kSeedsPerBatch) * 10);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SeedBatchTest, testing::Range<uint64_t>(0, kBatches));

// What no run reaches, the simulation says nothing about. Asked when every batch of this process
// has run; of a few picked ones it would mean nothing.
class CoverageCheck : public testing::Environment {
 public:
  void TearDown() override {
    if (CountedRuns() < kSeedsOfLeastHits / 2) return;
    for (const CoverageRow& row : ThinRows()) {
      ADD_FAILURE() << row.name << ": " << row.hits << " times in " << CountedRuns() << " seeds";
    }
  }
};
const testing::Environment* const kCoverageCheck =
    testing::AddGlobalTestEnvironment(new CoverageCheck);

TEST(DeterminismTest, SameSeedSameEvents) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const RunResult first = RunSeed(seed, /*trace=*/false);
    const RunResult second = RunSeed(seed, /*trace=*/true);
    EXPECT_EQ(first.hash, second.hash) << "seed " << seed;
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
  }
}

}  // namespace
}  // namespace baton::sim
