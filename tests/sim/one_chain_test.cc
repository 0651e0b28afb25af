#include "tests/sim/one_chain.h"

#include <gtest/gtest.h>

namespace baton::sim {
namespace {

// Runs it to its end.
void ExpectPromises(OneChain& chain) {
  chain.Run();
  EXPECT_EQ(chain.violation(), "");
}

TEST(OneChainTest, EveryPromptRunsOnce) {
  for (uint64_t seed = 1; seed <= 150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const ChainSettings settings = DrawChain(random);
    OneChain chain(random.Next(), settings);
    ExpectPromises(chain);
    EXPECT_EQ(chain.succeeded(), settings.requests);
  }
}

TEST(OneChainTest, DecodesBesideHandingOver) {
  for (uint64_t seed = 3000; seed < 3150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ChainSettings settings = DrawChain(random);
    settings.decoded_chance = random.Chance(0.5) ? 1 : 0.5;
    OneChain chain(random.Next(), settings);
    ExpectPromises(chain);
    EXPECT_EQ(chain.succeeded(), settings.requests);
  }
}

TEST(OneChainTest, AbortsOfDecodedRequestsLeaveNothingBehind) {
  int succeeded = 0;
  int aborted = 0;
  for (uint64_t seed = 4000; seed < 4150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ChainSettings settings = DrawChain(random);
    settings.decoded_chance = 0.7;
    settings.abort_chance = 0.5;
    settings.send_error_chance = random.Chance(0.5) ? 0.02 : 0;
    OneChain chain(random.Next(), settings);
    ExpectPromises(chain);
    succeeded += chain.succeeded();
    aborted += chain.aborted();
  }
  EXPECT_GT(succeeded, 300);
  EXPECT_GT(aborted, 300);
}

TEST(OneChainTest, AsManyPlansAsMayAreWithTheExecutor) {
  for (int depth = 1; depth <= 4; ++depth) {
    ChainSettings settings{.stages = 3, .pages = 80, .credits = depth, .plans_in_flight = depth};
    settings.window = 16;
    settings.chunk_tokens = kChainPageSize;
    settings.requests = 10;
    OneChain chain(7, settings);
    ExpectPromises(chain);
    EXPECT_EQ(chain.most_with_executor(), depth);
  }
}

TEST(OneChainTest, AbortsAndFailedSendsLeaveNothingBehind) {
  int succeeded = 0;
  int requests = 0;
  for (uint64_t seed = 1000; seed <= 1150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ChainSettings settings = DrawChain(random);
    settings.abort_chance = 0.5;
    settings.send_error_chance = random.Chance(0.5) ? 0.02 : 0;
    OneChain chain(random.Next(), settings);
    ExpectPromises(chain);
    succeeded += chain.succeeded();
    requests += settings.requests;
  }
  EXPECT_GT(succeeded, requests / 10);
  EXPECT_LT(succeeded, requests * 9 / 10);
}

TEST(OneChainTest, SharesPrefixesAndReadsItsOwnTokens) {
  int64_t cached_tokens = 0;
  uint64_t evicted_pages = 0;
  for (uint64_t seed = 5000; seed < 5080 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ChainSettings settings = DrawChain(random);
    settings.caches = true;
    settings.decoded_chance = 0.5;
    settings.abort_chance = random.Chance(0.5) ? 0.3 : 0;
    settings.send_error_chance = random.Chance(0.3) ? 0.02 : 0;
    OneChain chain(random.Next(), settings);
    ExpectPromises(chain);
    cached_tokens += chain.cached_tokens();
    evicted_pages += chain.evicted_pages();
  }
  EXPECT_GT(cached_tokens, 5'000);
  EXPECT_GT(evicted_pages, 500u);
}

// Texts are the same whether or not their requests gave way in between.
TEST(OneChainTest, GrowsAndRetracts) {
  uint64_t retractions = 0;
  for (uint64_t seed = 6000; seed < 6200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ChainSettings settings = DrawChain(random);
    settings.pages = static_cast<int>(random.Between(6, 20));
    settings.caches = random.Chance(0.5);
    settings.reserved_decode_tokens = static_cast<int>(random.Between(1, 8));
    settings.decoded_chance = random.Chance(0.5) ? 1 : 0.6;
    settings.abort_chance = random.Chance(0.3) ? 0.3 : 0;
    settings.send_error_chance = random.Chance(0.2) ? 0.02 : 0;
    OneChain chain(random.Next(), settings);
    ExpectPromises(chain);
    retractions += chain.retractions();
    if (settings.abort_chance > 0 || settings.send_error_chance > 0) continue;
    EXPECT_EQ(chain.succeeded(), settings.requests);
  }
  EXPECT_GT(retractions, 200u);
}

// Texts go on, too, when stages die between a token and the plan that feeds it.
TEST(OneChainTest, StagesDie) {
  int resumes = 0;
  for (uint64_t seed = 7000; seed < 7200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ChainSettings settings = DrawChain(random);
    settings.decoded_chance = 0.8;
    settings.caches = random.Chance(0.5);
    settings.deaths = 3;
    OneChain chain(random.Next(), settings);
    ExpectPromises(chain);
    EXPECT_EQ(chain.succeeded(), settings.requests);
    resumes += chain.resumes();
  }
  EXPECT_GT(resumes, 300);
}

TEST(OneChainTest, AllAtOnce) {
  int64_t cached_tokens = 0;
  uint64_t evicted_pages = 0;
  uint64_t retractions = 0;
  int resumes = 0;
  int steps_ahead = 0;
  for (uint64_t seed = 1; seed <= 400 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const ChainSettings settings = DrawStormyChain(random);
    OneChain chain(random.Next(), settings);
    ExpectPromises(chain);
    cached_tokens += chain.cached_tokens();
    evicted_pages += chain.evicted_pages();
    retractions += chain.retractions();
    resumes += chain.resumes();
    steps_ahead += chain.steps_ahead();
  }
  EXPECT_GT(cached_tokens, 10'000);
  EXPECT_GT(evicted_pages, 1000u);
  EXPECT_GT(retractions, 100u);
  EXPECT_GT(resumes, 100);
  EXPECT_GT(steps_ahead, 1'000);
}

// Aborts a thousand requests at once: waiting, computed, being sent. A dozen others are answered.
TEST(OneChainTest, AStormOfAbortsLeavesNoStageBehind) {
  for (uint64_t seed = 2000; seed < 2008 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ChainSettings settings = DrawChain(random);
    settings.stages = 8;
    settings.requests = 1020;
    settings.abort_chance = 0.985;
    settings.abort_begin_us = random.Between(500, 5000);
    OneChain chain(random.Next(), settings);
    ExpectPromises(chain);
    EXPECT_GT(chain.succeeded(), 3);
    EXPECT_GT(chain.aborted(), 900);
  }
}

}  // namespace
}  // namespace baton::sim
