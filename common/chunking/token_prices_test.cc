#include <gtest/gtest.h>

#include "common/chunking/chunk_plan.h"

namespace baton {
namespace {

constexpr StageCost kSlow = {
    .overhead_us = 9000, .prefix_us = 0.5, .token_us = 20, .attention_us = 0.005};
const std::vector<StageCost> kStages = {kSlow.Times(0.5), kSlow, {.overhead_us = 1e6}};

PromptShape Fresh(int tokens) { return {0, tokens, 16}; }

TEST(TokenPricesTest, EveryTokenCostsOneWhileNobodyKnows) {
  for (const TokenPrices& prices :
       {TokenPrices(), TokenPrices({}, 1000, 64), TokenPrices({{.overhead_us = 5}}, 1000, 64)}) {
    EXPECT_EQ(prices.Of(5000, 70), 70);
    EXPECT_EQ(prices.Affordable(Fresh(70), 70), 70);
    EXPECT_EQ(prices.Affordable(Fresh(70), 69.5), 64);
    EXPECT_EQ(prices.Affordable(Fresh(70), 15), 0);
    EXPECT_EQ(prices.Affordable(Fresh(15), 15), 15);
    EXPECT_EQ(prices.Affordable(Fresh(70), 1e12), 70);
  }
}

TEST(TokenPricesTest, ThePlansOwnTokensCostOneEach) {
  for (const int prefix : {0, 4096, 1'000'000}) {
    for (const int tokens : {16, 256, 8192}) {
      const TokenPrices prices(kStages, prefix, tokens);
      EXPECT_NEAR(prices.Of(prefix, tokens), tokens, 1e-9 * tokens);
      EXPECT_EQ(prices.Affordable({prefix, 1'000'000, 16}, tokens), tokens);
      EXPECT_LT(prices.Affordable({prefix, 1'000'000, 16}, tokens - 1), tokens);
    }
  }
}

TEST(TokenPricesTest, TheBeginOfAPromptIsCheapBesideTheEndOfALongOne) {
  const TokenPrices prices(kStages, 1'000'000, 64);
  // 1,000 tokens take 25 ms, and one of the 64 some 18.
  EXPECT_NEAR(prices.Of(0, 1000), 1.4, 0.1);
  EXPECT_EQ(prices.Affordable(Fresh(1000), 16), 1000);
  const int affordable = prices.Affordable(Fresh(100'000), 16);
  EXPECT_LE(prices.Of(0, affordable), 16);
  EXPECT_GT(prices.Of(0, affordable + 16), 16);
}

TEST(TokenPricesTest, TheEndOfALongPromptIsDearBesideABegin) {
  const TokenPrices prices(kStages, 0, 1024);
  EXPECT_GT(prices.Of(100'000, 16), 600);
  EXPECT_EQ(prices.Affordable({100'000, 64, 16}, 256), 0) << "not even a page";
}

TEST(TokenPricesTest, NothingIsBoughtForNothing) {
  const TokenPrices prices(kStages, 0, 1024);
  EXPECT_EQ(prices.Affordable(Fresh(64), 0), 0);
  EXPECT_EQ(prices.Affordable(Fresh(64), -3), 0);
  EXPECT_EQ(prices.Affordable(Fresh(0), 64), 0);
  EXPECT_EQ(TokenPrices().Affordable(Fresh(64), -40), 0) << "nor when nobody knows what it costs";
  EXPECT_EQ(prices.Of(1000, 0), 0);
}

}  // namespace
}  // namespace baton
