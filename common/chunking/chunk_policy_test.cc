#include "common/chunking/chunk_policy.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(FitChunkTest, EndsThePromptWhereverThatIs) {
  EXPECT_EQ(FitChunk(1, 64, 16), 1);
  EXPECT_EQ(FitChunk(37, 64, 16), 37);
  EXPECT_EQ(FitChunk(64, 64, 16), 64);
}

TEST(FitChunkTest, CutsOnPageBoundariesOtherwise) {
  EXPECT_EQ(FitChunk(100, 64, 16), 64);
  EXPECT_EQ(FitChunk(100, 63, 16), 48);
  EXPECT_EQ(FitChunk(100, 15, 16), 0);
}

TEST(FixedChunksTest, IgnoresThePosition) {
  const FixedChunks policy(256);
  EXPECT_EQ(policy.PlanTokens({.prefix_length = 0, .remaining_tokens = 10}), 256);
  EXPECT_EQ(policy.PlanTokens({.prefix_length = 100'000, .remaining_tokens = 1}), 256);
  EXPECT_EQ(policy.max_plan_tokens(), 256);
}

}  // namespace
}  // namespace baton
