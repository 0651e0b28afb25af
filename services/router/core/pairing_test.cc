#include <gtest/gtest.h>

#include <set>

#include "common/base/status.h"
#include "services/router/core/context_overflow.h"
#include "services/router/core/pairing_fixture.h"
#include "services/router/core/test_cluster.h"

namespace baton::router {
namespace {

const std::vector<Pair>& FourPairs() {
  static const std::vector<Pair> kPairs = {TestPair("c0", "d0"), TestPair("c0", "d1"),
                                           TestPair("c1", "d0"), TestPair("c1", "d1")};
  return kPairs;
}

std::string NameOf(const absl::StatusOr<Pair>& pair) {
  return pair.ok() ? pair->chain.chain_id + "+" + pair->decode.id : pair.status().ToString();
}

TEST(PairingTest, RoundRobinAlternatesBothSides) {
  TestPairing pairing(Policy::kRoundRobin);
  std::vector<std::string> chosen;
  for (int i = 0; i < 4; ++i) {
    const auto pair = pairing.Choose(FourPairs(), 10, 10, nullptr);
    chosen.push_back(NameOf(pair));
    pairing.Begin(*pair, 10, 10);
  }
  EXPECT_EQ(chosen, (std::vector<std::string>{"c0+d0", "c1+d1", "c0+d0", "c1+d1"}));
}

TEST(PairingTest, LeastLoadTakesTheChainWithLessPromptAndTheDecodeWithFewerRequests) {
  TestPairing pairing(Policy::kLeastLoad);
  pairing.Begin(TestPair("c0", "d1"), 500, 10);
  EXPECT_EQ(NameOf(pairing.Choose(FourPairs(), 10, 10, nullptr)), "c1+d0");
  pairing.Begin(TestPair("c1", "d0"), 600, 10);
  pairing.Begin(TestPair("c1", "d0"), 1, 10);
  EXPECT_EQ(NameOf(pairing.Choose(FourPairs(), 10, 10, nullptr)), "c0+d1");
  // Through the chain, its prompt weighs no more.
  pairing.EndPrefill(TestPair("c1", "d0"), 600);
  EXPECT_EQ(NameOf(pairing.Choose(FourPairs(), 10, 10, nullptr)), "c1+d1");
}

TEST(PairingTest, WhatOtherRoutersHavePutThereCountsBesideItsOwn) {
  TestPairing pairing(Policy::kLeastLoad);
  pairing.Begin(TestPair("c0", "d0"), 100, 10);
  WorkerLoad decode;
  decode.running_requests = 2;  // One is this router's.
  decode.queued_requests = 1;
  pairing.Report(PairProcess("d0"), decode, 900);
  WorkerLoad chain;
  chain.queued_tokens = 400;
  pairing.Report(PairProcess("c1-0"), chain, 0);
  EXPECT_EQ(NameOf(pairing.Choose(FourPairs(), 10, 10, nullptr)), "c0+d1");
  // Its own grows at once, the others' part stays as reported: d0 has four now, d1 two.
  pairing.Begin(TestPair("c0", "d0"), 1, 1);
  pairing.Begin(TestPair("c0", "d1"), 1, 1);
  pairing.Begin(TestPair("c0", "d1"), 1, 1);
  EXPECT_EQ(pairing.Choose(FourPairs(), 10, 10, nullptr)->decode.id, "d1");
  // Full of others' work: no room for 1200 tokens though this router has put 111 there.
  decode.running_requests = decode.queued_requests = 0;
  pairing.Report(PairProcess("d0"), decode, 1900);
  EXPECT_EQ(pairing.Choose(FourPairs(), 600, 600, nullptr)->decode.id, "d1");
  // All of it is over.
  pairing.Report(PairProcess("d0"), {}, 0);
  pairing.EndDecode(TestPair("c0", "d0"), 100, 10);
  EXPECT_EQ(pairing.Choose(FourPairs(), 10, 10, nullptr)->decode.id, "d0");
}

TEST(PairingTest, ADecodeWithoutRoomIsTheLastChoice) {
  TestPairing pairing(Policy::kLeastLoad);
  pairing.Begin(TestPair("c1", "d0"), 900, 600);
  pairing.EndPrefill(TestPair("c1", "d0"), 900);
  for (int i = 0; i < 3; ++i) pairing.Begin(TestPair("c1", "d1"), 10, 10);
  // d0 has fewer requests, but 1500 of its 2000 tokens are reserved.
  EXPECT_EQ(pairing.Choose(FourPairs(), 500, 100, nullptr)->decode.id, "d1");
  EXPECT_EQ(pairing.Choose(FourPairs(), 10, 10, nullptr)->decode.id, "d0");
  pairing.Begin(TestPair("c1", "d1"), 10, 10);  // All four slots of d1 are taken now.
  EXPECT_EQ(pairing.Choose(FourPairs(), 10, 10, nullptr)->decode.id, "d0");
}

TEST(PairingTest, ARetryChangesTheLegThatFailed) {
  TestPairing pairing(Policy::kLeastLoad);
  const FailedPair decode_failed = {FourPairs()[0], Role::kDecode};
  EXPECT_EQ(pairing.Choose(FourPairs(), 10, 10, &decode_failed)->decode.id, "d1");
  FailedPair prefill_failed = decode_failed;
  prefill_failed.leg = Role::kPrefill;
  EXPECT_EQ(pairing.Choose(FourPairs(), 10, 10, &prefill_failed)->chain.chain_id, "c1");
  // No other chain: the same one with another decode, since the way between them may be what
  // failed.
  const std::vector<Pair> one_chain = {FourPairs()[0], FourPairs()[1]};
  EXPECT_EQ(NameOf(pairing.Choose(one_chain, 10, 10, &prefill_failed)), "c0+d1");
  const std::vector<Pair> one_pair = {FourPairs()[0]};
  EXPECT_EQ(pairing.Choose(one_pair, 10, 10, &prefill_failed).status().code(),
            absl::StatusCode::kNotFound);
}

// A rank that was started again makes another service of it.
TEST(PairingTest, ARetryMayGoWhereAnotherRankIs) {
  TestPairing pairing(Policy::kLeastLoad);
  Pair before = TestPair("c0", "d0");
  before.followers = {{"d0-1", 1}};
  const FailedPair failed = {before, Role::kDecode};
  EXPECT_TRUE(absl::IsNotFound(pairing.Choose({before}, 10, 10, &failed).status()));
  Pair after = before;
  after.followers = {{"d0-1", 2}};
  EXPECT_EQ(NameOf(pairing.Choose({after}, 10, 10, &failed)), "c0+d0");
}

// Who is blamed for a connection that failed says little about which of its ends did.
TEST(PairingTest, ARetryChangesTheOtherLegTooWhereThatCostsNoWaiting) {
  for (const Policy policy : {Policy::kLeastLoad, Policy::kRoundRobin}) {
    TestPairing pairing(policy);
    pairing.Begin(TestPair("c1", "d1"), 100, 10);  // Busier, and used last.
    FailedPair failed = {FourPairs()[0], Role::kDecode};
    EXPECT_EQ(NameOf(pairing.Choose(FourPairs(), 10, 10, &failed)), "c1+d1");
    failed.leg = Role::kPrefill;
    EXPECT_EQ(NameOf(pairing.Choose(FourPairs(), 10, 10, &failed)), "c1+d1");
    pairing.Begin(TestPair("c1", "d1"), 1000, 10);  // Its chain has no room left.
    failed.leg = Role::kDecode;
    EXPECT_EQ(NameOf(pairing.Choose(FourPairs(), 10, 10, &failed)), "c0+d1");
  }
}

TEST(PairingTest, WhatFitsNowhereIsRefusedWithTheLimits) {
  TestPairing pairing(Policy::kLeastLoad);
  const absl::Status status = pairing.Choose(FourPairs(), 1001, 10, nullptr).status();
  EXPECT_EQ(FieldOf(status), "prompt");
  EXPECT_TRUE(IsContextOverflow(status)) << status;
  EXPECT_NE(status.message().find("takes prompts of 1000 tokens"), std::string::npos) << status;
  const absl::Status output = pairing.Choose(FourPairs(), 900, 601, nullptr).status();
  EXPECT_EQ(FieldOf(output), "max_tokens");
  EXPECT_TRUE(IsContextOverflow(output)) << output;
  EXPECT_NE(output.message().find("ask for at most 600"), std::string::npos) << output;
  EXPECT_TRUE(pairing.Choose(FourPairs(), 900, 600, nullptr).ok());
}

TEST(PairingTest, WhoAskedForNoNumberIsClippedToTheLargestPair) {
  TestPairing pairing(Policy::kLeastLoad);
  std::vector<Pair> pairs = {TestPair("c0", "d0"), TestPair("c0", "d1")};
  pairs[0].max_context_tokens = 600;
  EXPECT_TRUE(IsContextOverflow(pairing.Choose(pairs, 500, 5000, nullptr).status()));
  EXPECT_EQ(pairing.Choose(pairs, 500, 5000, nullptr, /*clip=*/true)->decode.id, "d1");
  const FailedPair failed = {pairs[1], Role::kDecode};
  EXPECT_EQ(pairing.Choose(pairs, 500, 5000, &failed, /*clip=*/true)->decode.id, "d0");
  EXPECT_EQ(FieldOf(pairing.Choose({pairs[0]}, 600, 5000, nullptr, /*clip=*/true).status()),
            "prompt")
      << "not even one token";
}

TEST(PairingTest, AChainIsGivenPromptsUntilTheyFillItsPages) {
  for (const Policy policy : {Policy::kLeastLoad, Policy::kRoundRobin}) {
    TestPairing pairing(policy);
    const std::vector<Pair> one = {TestPair("c0", "d0")};
    pairing.Begin(one[0], 999, 1);
    EXPECT_TRUE(pairing.Choose(one, 500, 1, nullptr).ok())
        << "a page is free: it runs or runs next";
    pairing.Begin(one[0], 500, 1);
    EXPECT_TRUE(IsOverloaded(pairing.Choose(one, 1, 1, nullptr).status()));
    EXPECT_TRUE(pairing.Choose(FourPairs(), 1, 1, nullptr).ok()) << "the other chain has room";
    const uint64_t changes = pairing.changes();
    pairing.EndPrefill(one[0], 500);
    EXPECT_GT(pairing.changes(), changes);
    EXPECT_TRUE(pairing.Choose(one, 1, 1, nullptr).ok());
    const uint64_t later = pairing.changes();
    pairing.EndDecode(one[0], 500, 1);
    EXPECT_GT(pairing.changes(), later);
  }
}

// The counter differs before and after several changes too.
TEST(PairingTest, ChangesGrowWithAllThatMayHaveMadeRoom) {
  TestPairing pairing(Policy::kLeastLoad);
  const Pair pair = TestPair("c0", "d0");
  uint64_t changes = pairing.changes();
  const auto grows = [&](const char* what) {
    EXPECT_GT(pairing.changes(), changes) << what;
    changes = pairing.changes();
  };
  pairing.Begin(pair, 10, 10);
  changes = pairing.changes();
  pairing.EndPrefill(pair, 10);
  grows("a prompt is through");
  pairing.EndDecode(pair, 10, 10);
  grows("a request is over");
  pairing.Report(pair.decode, WorkerLoad(), 0);
  grows("a worker tells its load");
  pairing.Forget(pair.decode);
  grows("a worker is lost");
}

TEST(PairingTest, PromptsAreCountedInWholePages) {
  TestPairing pairing(Policy::kLeastLoad);
  std::vector<Pair> one = {TestPair("c0", "d0")};
  one[0].page_size = 500;
  one[0].decode_capacity_tokens = 100'000;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(pairing.Choose(one, 1, 1, nullptr).ok());
    pairing.Begin(one[0], 1, 1);
  }
  EXPECT_FALSE(pairing.Choose(one, 1, 1, nullptr).ok());
  for (int i = 0; i < 2; ++i) {
    pairing.EndPrefill(one[0], 1);
    pairing.EndDecode(one[0], 1, 1);
  }
  EXPECT_TRUE(pairing.AtRest());
  EXPECT_EQ(pairing.mended_total(), 0);
}

TEST(PairingTest, ADecodeIsGivenNoMoreThanItsSlots) {
  TestPairing pairing(Policy::kLeastLoad);
  const std::vector<Pair> one = {TestPair("c0", "d0")};
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(pairing.Choose(one, 10, 10, nullptr).ok());
    EXPECT_FALSE(pairing.Begin(one[0], 10, 10)) << "a slot is free";
  }
  EXPECT_TRUE(IsOverloaded(pairing.Choose(one, 10, 10, nullptr).status()));
  pairing.EndPrefill(one[0], 10);
  EXPECT_TRUE(IsOverloaded(pairing.Choose(one, 10, 10, nullptr).status()));
  pairing.EndDecode(one[0], 10, 10);
  EXPECT_TRUE(pairing.Choose(one, 10, 10, nullptr).ok());
}

// It may have more pages than the router knows: requests share those of a prefix.
TEST(PairingTest, ADecodeWithoutPagesIsGivenOneMore) {
  TestPairing pairing(Policy::kLeastLoad);
  std::vector<Pair> one = {TestPair("c0", "d0")};
  one[0].decode_slots = 10;
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(pairing.Begin(one[0], 10, 490)) << "pages are free";
  EXPECT_TRUE(pairing.Choose(one, 900, 10, nullptr).ok());
  EXPECT_TRUE(pairing.Begin(one[0], 900, 10));
  EXPECT_TRUE(IsOverloaded(pairing.Choose(one, 10, 10, nullptr).status()));
  EXPECT_EQ(pairing.Choose(FourPairs(), 10, 10, nullptr)->decode.id, "d1");
  // What waits for decode's pages is no work of the chain yet: with another decode it has room.
  const std::vector<Pair> other = {TestPair("c0", "d1")};
  pairing.Begin(other[0], 900, 10);
  EXPECT_TRUE(pairing.Choose(other, 10, 10, nullptr).ok());
  // Two leave, and the one that waits has its pages: now it is the chain's.
  for (int i = 0; i < 2; ++i) {
    pairing.EndPrefill(one[0], 10);
    pairing.EndDecode(one[0], 10, 490);
  }
  pairing.Granted(one[0], 900);
  EXPECT_FALSE(pairing.Choose(other, 10, 10, nullptr).ok()) << "1840 of 1000 tokens";
  pairing.EndPrefill(one[0], 900);
  EXPECT_TRUE(pairing.Choose(one, 10, 10, nullptr).ok());
  EXPECT_EQ(pairing.mended_total(), 0);
}

TEST(PairingTest, ADecodesTokensFillItToo) {
  TestPairing pairing(Policy::kLeastLoad);
  const Pair pair = TestPair("c0", "d0");
  EXPECT_FALSE(pairing.Begin(pair, 900, 600));
  EXPECT_FALSE(pairing.Begin(pair, 100, 400)) << "to the last token";
  EXPECT_TRUE(pairing.Begin(pair, 1, 1));
  pairing.Granted(pair, 1);
  pairing.Granted(pair, 1);
  EXPECT_EQ(pairing.mended_total(), 1);
}

TEST(PairingTest, IsAtRestWhenAllHasEnded) {
  TestPairing pairing(Policy::kLeastLoad);
  EXPECT_TRUE(pairing.AtRest());
  pairing.Begin(TestPair("c0", "d0"), 5, 6);
  EXPECT_FALSE(pairing.AtRest());
  pairing.EndPrefill(TestPair("c0", "d0"), 5);
  EXPECT_FALSE(pairing.AtRest());
  pairing.EndDecode(TestPair("c0", "d0"), 5, 6);
  EXPECT_TRUE(pairing.AtRest());
  EXPECT_EQ(pairing.mended_total(), 0);
}

// A decode's lease ends, it registers again as it was and is given work, while an answer that it
// had completed waits for prefill's report.
TEST(PairingTest, AWorkerThatComesBackKeepsItsBooks) {
  TestPairing pairing(Policy::kLeastLoad);
  const Pair pair = TestPair("c0", "d0");
  pairing.Begin(pair, 5, 6);
  pairing.Forget(pair.decode);
  pairing.Forget(pair.chain.stage0);
  pairing.Begin(pair, 50, 60);
  pairing.EndPrefill(pair, 5);
  pairing.EndDecode(pair, 5, 6);
  EXPECT_FALSE(pairing.AtRest());
  pairing.EndPrefill(pair, 50);
  pairing.EndDecode(pair, 50, 60);
  EXPECT_TRUE(pairing.AtRest());
  EXPECT_EQ(pairing.mended_total(), 0);
}

TEST(PairingTest, WhatEndsTwiceIsMendedAndCounted) {
  TestPairing pairing(Policy::kLeastLoad);
  const Pair pair = TestPair("c0", "d0");
  pairing.Begin(pair, 5, 6);
  for (int i = 0; i < 2; ++i) {
    pairing.EndPrefill(pair, 5);
    pairing.EndDecode(pair, 5, 6);
  }
  EXPECT_TRUE(pairing.AtRest());
  EXPECT_EQ(pairing.mended_total(), 2);
}

}  // namespace
}  // namespace baton::router
