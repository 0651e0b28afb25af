// Colocated chains among the pairs that Pairing chooses from.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "services/router/core/context_overflow.h"
#include "services/router/core/pairing_fixture.h"
#include "services/router/core/test_cluster.h"

namespace baton::router {
namespace {

std::string ChainOf(const absl::StatusOr<Pair>& pair) {
  return pair.ok() ? pair->chain.chain_id : pair.status().ToString();
}

class PairingColocatedTest : public ::testing::Test {
 protected:
  std::string Chosen(const FailedPair* failed = nullptr) {
    return ChainOf(books_.Choose(pairs_, 10, 10, failed));
  }

  TestPairing books_{Policy::kLeastLoad};
  const Pair one_ = TestColocatedPair("x0");
  const Pair other_ = TestColocatedPair("x1");
  const Pair pair_ = TestPair("c0", "d0");
  const std::vector<Pair> pairs_ = {one_, other_, pair_};
};

TEST_F(PairingColocatedTest, ARequestCountsOnceToItsEnd) {
  EXPECT_FALSE(books_.Begin(one_, 100, 50));
  EXPECT_FALSE(books_.AtRest());
  books_.EndPrefill(one_, 100);
  EXPECT_FALSE(books_.AtRest()) << "it decodes";
  books_.EndDecode(one_, 100, 50);
  EXPECT_TRUE(books_.AtRest());
  EXPECT_EQ(books_.mended_total(), 0);
  books_.EndPrefill(one_, 100);
  books_.EndDecode(one_, 100, 50);
  EXPECT_EQ(books_.mended_total(), 2);
}

TEST_F(PairingColocatedTest, TheOneWithLessPromptIsChosenThenTheOneWithFewerRequests) {
  books_.Begin(one_, 100, 10);
  books_.Begin(pair_, 50, 10);
  EXPECT_EQ(Chosen(), "x1");
  books_.Begin(other_, 500, 10);
  EXPECT_EQ(Chosen(), "c0");
  books_.EndPrefill(one_, 100);
  EXPECT_EQ(Chosen(), "x0") << "its prompt is read";
  books_.EndPrefill(pair_, 50);
  books_.EndDecode(pair_, 50, 10);
  EXPECT_EQ(Chosen(), "c0") << "x0 decodes and x1 reads a prompt";
}

TEST_F(PairingColocatedTest, RoundRobinTakesTurnsAmongAll) {
  TestPairing turns(Policy::kRoundRobin);
  std::vector<std::string> chosen;
  for (int i = 0; i < 6; ++i) {
    const auto pair = turns.Choose(pairs_, 10, 10, nullptr);
    chosen.push_back(ChainOf(pair));
    turns.Begin(*pair, 10, 10);
  }
  EXPECT_EQ(chosen, (std::vector<std::string>{"x0", "x1", "c0", "x0", "x1", "c0"}));
}

// It has room for 1100 tokens and four requests.
TEST_F(PairingColocatedTest, OneRequestAtMostWaitsForPages) {
  const auto room = [this](int tokens) { return books_.Choose({one_}, tokens, 1, nullptr).ok(); };
  books_.Begin(one_, 500, 100);
  EXPECT_TRUE(room(900)) << "it would wait there";
  books_.Begin(one_, 900, 100);
  EXPECT_FALSE(room(1));
  books_.EndPrefill(one_, 500);
  EXPECT_FALSE(room(1)) << "its pages are held while it decodes";
  const uint64_t changes = books_.changes();
  books_.EndDecode(one_, 500, 100);
  EXPECT_GT(books_.changes(), changes);
  EXPECT_TRUE(room(1));
  EXPECT_TRUE(IsOverloaded(books_.Choose({one_}, 1, 1, nullptr).status()) == false);
}

TEST_F(PairingColocatedTest, OneRequestAtMostWaitsForAPlace) {
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(books_.Choose({one_}, 1, 1, nullptr).ok()) << i;
    EXPECT_FALSE(books_.Begin(one_, 1, 1)) << "no pages are told of";
  }
  EXPECT_TRUE(IsOverloaded(books_.Choose({one_}, 1, 1, nullptr).status()));
}

TEST_F(PairingColocatedTest, WhereItWouldWaitIsTheLastChoice) {
  books_.Begin(one_, 100, 900);
  books_.EndPrefill(one_, 100);
  for (int i = 0; i < 2; ++i) {
    books_.Begin(other_, 1, 1);
    books_.EndPrefill(other_, 1);
  }
  EXPECT_EQ(ChainOf(books_.Choose({one_, other_}, 10, 10, nullptr)), "x0") << "it has fewer";
  EXPECT_EQ(ChainOf(books_.Choose({one_, other_}, 100, 100, nullptr)), "x1") << "it has pages";
}

TEST_F(PairingColocatedTest, WhatOtherRoutersHavePutThereCounts) {
  WorkerLoad load;
  load.running_requests = 3;
  books_.Report(one_.chain.stage0, load, 300);
  EXPECT_EQ(Chosen(), "x1");
  books_.Report(one_.chain.stage0, load, 1000);
  load.running_requests = 0;
  load.queued_tokens = 50;
  books_.Report(other_.chain.stage0, load, 0);
  EXPECT_EQ(ChainOf(books_.Choose({one_, other_}, 100, 100, nullptr)), "x1")
      << "in the other one it would wait";
}

TEST_F(PairingColocatedTest, ARefusalLimitsAllThatTheChainHas) {
  for (int i = 0; i < 2; ++i) {
    books_.Begin(one_, 10, 10);
    books_.EndPrefill(one_, 10);
  }
  books_.Refused(one_.chain.stage0, 1000, 0);
  EXPECT_FALSE(books_.Choose({one_}, 10, 10, nullptr).ok());
  books_.EndDecode(one_, 10, 10);  // Which was refused.
  EXPECT_FALSE(books_.Choose({one_}, 10, 10, nullptr).ok()) << "as many as fitted";
  books_.EndDecode(one_, 10, 10);
  EXPECT_TRUE(books_.Choose({one_}, 10, 10, nullptr).ok());
}

TEST_F(PairingColocatedTest, AFailedChainIsTriedElsewhereAndNoOtherCountsAsIt) {
  const FailedPair failed = {one_, Role::kPrefill};
  EXPECT_TRUE(absl::IsNotFound(books_.Choose({one_}, 10, 10, &failed).status()));
  books_.Begin(pair_, 10, 10);
  EXPECT_EQ(Chosen(&failed), "x1");
  books_.Begin(other_, 20, 10);
  EXPECT_EQ(Chosen(&failed), "c0");
  const FailedPair failed_pair = {pair_, Role::kDecode};
  EXPECT_EQ(Chosen(&failed_pair), "x0");
}

TEST_F(PairingColocatedTest, WhatFitsNowhereIsRefusedWithTheLimitsOfEachKind) {
  EXPECT_TRUE(books_.Choose({one_}, 1000, 100, nullptr).ok());
  const absl::Status output = books_.Choose({one_}, 1000, 101, nullptr).status();
  EXPECT_EQ(FieldOf(output), "max_tokens");
  EXPECT_NE(output.message().find("ask for at most 100"), std::string::npos) << output;
  const absl::Status alone = books_.Choose({one_}, 1100, 1, nullptr).status();
  EXPECT_TRUE(IsContextOverflow(alone));
  EXPECT_EQ(FieldOf(alone), "prompt");
  EXPECT_EQ(alone.message().find("decode service"), std::string::npos) << alone;
  EXPECT_NE(alone.message().find("the largest colocated chain takes 1100 tokens"),
            std::string::npos)
      << alone;
  const absl::Status both = books_.Choose(pairs_, 1100, 1, nullptr).status();
  EXPECT_NE(both.message().find("the largest prefill chain takes prompts of 1000 tokens, the "
                                "largest decode service 1500"),
            std::string::npos)
      << both;
  EXPECT_NE(both.message().find("the largest colocated chain takes 1100"), std::string::npos);
  EXPECT_EQ(ChainOf(books_.Choose(pairs_, 1050, 10, nullptr)), "x0") << "no plain chain holds it";
  EXPECT_EQ(ChainOf(books_.Choose(pairs_, 900, 400, nullptr)), "c0");
}

}  // namespace
}  // namespace baton::router
