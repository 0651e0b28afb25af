#include <gtest/gtest.h>

#include "services/prefill/core/chain_fixture.h"

namespace baton::prefill {
namespace {

ChainSettings Draw(Random& random) {
  return {.stages = static_cast<int>(random.Between(1, 6)),
          .pages = static_cast<int>(random.Between(8, 80)),
          .credits = static_cast<int>(random.Between(1, 4)),
          .plans_in_flight = static_cast<int>(random.Between(1, 4)),
          .window = static_cast<int>(random.Between(1, 8)),
          .chunk_tokens = kPageSize * static_cast<int>(random.Between(1, 12)),
          .requests = static_cast<int>(random.Between(1, 25))};
}

TEST(ChainTest, EveryPromptRunsOnce) {
  for (uint64_t seed = 1; seed <= 150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const ChainSettings settings = Draw(random);
    Chain chain(random.Next(), settings);
    chain.Run();
    chain.ExpectAtRest();
    EXPECT_EQ(chain.succeeded(), static_cast<size_t>(settings.requests));
  }
}

TEST(ChainTest, DecodesBesideHandingOver) {
  for (uint64_t seed = 3000; seed < 3150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ChainSettings settings = Draw(random);
    settings.decoded_chance = random.Chance(0.5) ? 1 : 0.5;
    Chain chain(random.Next(), settings);
    chain.Run();
    chain.ExpectAtRest();
    EXPECT_EQ(chain.succeeded(), static_cast<size_t>(settings.requests));
  }
}

TEST(ChainTest, AbortsOfDecodedRequestsLeaveNothingBehind) {
  size_t succeeded = 0;
  size_t aborted = 0;
  for (uint64_t seed = 4000; seed < 4150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ChainSettings settings = Draw(random);
    settings.decoded_chance = 0.7;
    settings.abort_chance = 0.5;
    settings.send_error_chance = random.Chance(0.5) ? 0.02 : 0;
    Chain chain(random.Next(), settings);
    chain.Run();
    chain.ExpectAtRest();
    succeeded += chain.succeeded();
    aborted += chain.aborted();
  }
  EXPECT_GT(succeeded, 300u);
  EXPECT_GT(aborted, 300u);
}

TEST(ChainTest, AsManyPlansAsMayAreWithTheExecutor) {
  for (int depth = 1; depth <= 4; ++depth) {
    ChainSettings settings{.stages = 3, .pages = 80, .credits = depth, .plans_in_flight = depth};
    settings.window = 16;
    settings.chunk_tokens = kPageSize;
    settings.requests = 10;
    Chain chain(7, settings);
    chain.Run();
    chain.ExpectAtRest();
    EXPECT_EQ(chain.most_with_executor(), depth);
  }
}

TEST(ChainTest, AbortsAndFailedSendsLeaveNothingBehind) {
  size_t succeeded = 0;
  size_t requests = 0;
  for (uint64_t seed = 1000; seed <= 1150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ChainSettings settings = Draw(random);
    settings.abort_chance = 0.5;
    settings.send_error_chance = random.Chance(0.5) ? 0.02 : 0;
    Chain chain(random.Next(), settings);
    chain.Run();
    chain.ExpectAtRest();
    succeeded += chain.succeeded();
    requests += static_cast<size_t>(settings.requests);
  }
  EXPECT_GT(succeeded, requests / 10);
  EXPECT_LT(succeeded, requests * 9 / 10);
}

TEST(ChainTest, SharesPrefixesAndReadsItsOwnTokens) {
  int64_t cached_tokens = 0;
  uint64_t evicted_pages = 0;
  for (uint64_t seed = 5000; seed < 5080 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ChainSettings settings = Draw(random);
    settings.caches = true;
    settings.decoded_chance = 0.5;
    settings.abort_chance = random.Chance(0.5) ? 0.3 : 0;
    settings.send_error_chance = random.Chance(0.3) ? 0.02 : 0;
    Chain chain(random.Next(), settings);
    chain.Run();
    chain.ExpectAtRest();
    cached_tokens += chain.cached_tokens();
    evicted_pages += chain.evicted_pages();
  }
  EXPECT_GT(cached_tokens, 5'000);
  EXPECT_GT(evicted_pages, 500u);
}

// Texts are the same whether or not their requests gave way in between.
TEST(ChainTest, GrowsAndRetracts) {
  uint64_t retractions = 0;
  for (uint64_t seed = 6000; seed < 6200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ChainSettings settings = Draw(random);
    settings.pages = static_cast<int>(random.Between(6, 20));
    settings.caches = random.Chance(0.5);
    settings.reserved_decode_tokens = static_cast<int>(random.Between(1, 8));
    settings.decoded_chance = random.Chance(0.5) ? 1 : 0.6;
    settings.abort_chance = random.Chance(0.3) ? 0.3 : 0;
    settings.send_error_chance = random.Chance(0.2) ? 0.02 : 0;
    Chain chain(random.Next(), settings);
    chain.Run();
    chain.ExpectAtRest();
    retractions += chain.retractions();
    if (settings.abort_chance > 0 || settings.send_error_chance > 0) continue;
    EXPECT_EQ(chain.succeeded(), static_cast<size_t>(settings.requests));
  }
  EXPECT_GT(retractions, 200u);
}

// Aborts a thousand requests at once: waiting, computed, being sent. A dozen others are answered.
TEST(ChainTest, AStormOfAbortsLeavesNoStageBehind) {
  for (uint64_t seed = 2000; seed < 2008 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ChainSettings settings = Draw(random);
    settings.stages = 8;
    settings.requests = 1020;
    settings.abort_chance = 0.985;
    settings.abort_begin_us = random.Between(500, 5000);
    Chain chain(random.Next(), settings);
    chain.Run();
    chain.ExpectAtRest();
    EXPECT_GT(chain.succeeded(), 3u);
    EXPECT_GT(chain.aborted(), 900u);
  }
}

}  // namespace
}  // namespace baton::prefill
