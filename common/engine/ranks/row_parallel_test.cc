#include "common/engine/ranks/row_parallel.h"

#include <gtest/gtest.h>

#include <vector>

namespace baton {
namespace {

// A product as slow as its sums, beside which a call costs nothing.
constexpr RowParallelCosts kBalanced = {0, 1000, 0, 1000};

TEST(RowParallelTest, EachOfTheFourConditionsAloneKeepsAStepWhole) {
  const RowParallelOptions four = {4, 8192};
  EXPECT_EQ(RowParallelChunks(four, {}, 2, 8192), 4);
  EXPECT_EQ(RowParallelChunks({1, 8192}, {}, 2, 8192), 1) << "not asked for";
  EXPECT_EQ(RowParallelChunks(four, {}, 1, 8192), 1) << "nothing to reduce, as there is one rank";
  EXPECT_EQ(RowParallelChunks(four, {}, 2, 8191), 1) << "too small";
  EXPECT_EQ(RowParallelChunks({0, 8192}, kBalanced, 2, 8191), 1) << "too small for auto";
}

TEST(RowParallelTest, NoChunkIsEmptyAndTogetherTheyAreAllRows) {
  EXPECT_EQ(CutRows(10, 4), (std::vector<IndexRange>{{0, 2}, {2, 5}, {5, 7}, {7, 10}}));
  EXPECT_EQ(CutRows(3, 8), (std::vector<IndexRange>{{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_EQ(CutRows(5, 1), (std::vector<IndexRange>{{0, 5}}));
  EXPECT_EQ(RowParallelChunks({8, 1}, {}, 2, 3), 3);
  EXPECT_EQ(CutRows(INT32_MAX, 2)[1], (IndexRange{INT32_MAX / 2, INT32_MAX}));
}

TEST(RowParallelTest, ChunksHideTheShorterOfTheTwo) {
  EXPECT_EQ(RowParallelNs(kBalanced, 8192, 1), 2 * 8'192'000);
  EXPECT_EQ(RowParallelNs(kBalanced, 8192, 8), 9 * 1'024'000);
  // Nothing to gain by more than the shorter one.
  const RowParallelCosts fast_net = {0, 1000, 0, 100};
  EXPECT_EQ(RowParallelNs(fast_net, 1000, 10), 10 * 100'000 + 10'000);
}

TEST(RowParallelTest, AutoTakesMoreChunksUntilTheirCallsCostMore) {
  const auto chunks = [](int64_t call_ns, int tokens) {
    return RowParallelChunks({0, 1}, {call_ns, 1000, call_ns, 1000}, 2, tokens);
  };
  EXPECT_EQ(chunks(0, 8192), 32) << "64 are 1.5% faster, which is not worth the calls";
  EXPECT_EQ(chunks(100'000, 8192), 8);
  EXPECT_EQ(chunks(100'000, 32768), 16);
  EXPECT_EQ(chunks(100'000, 64), 1);
  EXPECT_EQ(RowParallelChunks({0, 1}, {}, 2, 8192), 1) << "not measured: none is better";
}

}  // namespace
}  // namespace baton
