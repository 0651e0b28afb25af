// Pairing's load counts of every worker: when they drop, when they are inconsistent, when they are
// forgotten.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "services/router/core/pairing_fixture.h"
#include "services/router/core/test_cluster.h"

namespace baton::router {
namespace {

// Whose decode service runs one request.
Pair PairOf(const std::string& chain, const std::string& decode) {
  Pair pair = TestPair(chain, decode);
  pair.decode_slots = 1;
  return pair;
}

class PairingBooksTest : public ::testing::Test {
 protected:
  TestPairing books_{Policy::kLeastLoad};
  const Pair pair_ = PairOf("c0", "d0");
};

// ---- What does not agree ----

TEST_F(PairingBooksTest, WhatNeverBeganIsMendedWhereverItEnds) {
  books_.Granted(pair_, 5);
  books_.EndPrefill(pair_, 5);
  books_.EndDecode(pair_, 5, 6);
  EXPECT_EQ(books_.mended_total(), 3);
  books_.Begin(pair_, 5, 6);
  books_.Granted(PairOf("c0", "d9"), 5);
  books_.Granted(PairOf("c9", "d0"), 5);
  EXPECT_EQ(books_.mended_total(), 5);
}

TEST_F(PairingBooksTest, AGrantIsOfAChainAndADecodeThatWaitForIt) {
  const Pair other = PairOf("c1", "d1");
  books_.Begin(other, 5, 6);
  books_.Begin(pair_, 5, 6);
  ASSERT_TRUE(books_.Begin(pair_, 5, 6)) << "its one slot is taken";
  books_.Granted(PairOf("c0", "d1"), 5);
  EXPECT_EQ(books_.mended_total(), 1) << "nobody waits for d1";
  books_.Granted(PairOf("c1", "d0"), 5);
  EXPECT_EQ(books_.mended_total(), 2) << "nothing of c1 waits";
  books_.Granted(pair_, 5);
  EXPECT_EQ(books_.mended_total(), 2);
}

TEST_F(PairingBooksTest, MoreTokensThanThereAreDoNotEnd) {
  books_.Begin(pair_, 5, 6);
  books_.EndPrefill(pair_, 6);
  books_.EndDecode(pair_, 5, 7);
  EXPECT_EQ(books_.mended_total(), 2);
  books_.EndPrefill(pair_, 5);
  books_.EndDecode(pair_, 5, 6);
  EXPECT_EQ(books_.mended_total(), 2);
  EXPECT_TRUE(books_.AtRest());
}

TEST_F(PairingBooksTest, TokensThatAreLeftDoNotEndWithoutARequest) {
  books_.Begin(pair_, 5, 6);
  books_.EndPrefill(pair_, 4);
  books_.EndPrefill(pair_, 1);
  books_.EndDecode(pair_, 5, 5);
  books_.EndDecode(pair_, 0, 1);
  EXPECT_EQ(books_.mended_total(), 2);
}

TEST_F(PairingBooksTest, AreAtRestWithNothingLeftOfAnyKind) {
  const auto at_rest = [this](int prefill_ends, int decode_ends) {
    TestPairing books(Policy::kLeastLoad);
    books.Begin(pair_, 5, 6);
    books.EndPrefill(pair_, prefill_ends);
    books.EndDecode(pair_, 5, decode_ends);
    return books.AtRest();
  };
  EXPECT_TRUE(at_rest(5, 6));
  EXPECT_FALSE(at_rest(4, 6)) << "a token of a prompt";
  EXPECT_FALSE(at_rest(5, 5)) << "a token of an answer";
  const auto after_grants = [this](const std::vector<int>& grants) {
    TestPairing books(Policy::kLeastLoad);
    for (int i = 0; i < 3; ++i) books.Begin(pair_, 5, 6);  // Two of them wait.
    for (const int tokens : grants) books.Granted(pair_, tokens);
    for (int i = 0; i < 3; ++i) {
      books.EndPrefill(pair_, 5);
      books.EndDecode(pair_, 5, 6);
    }
    return books.AtRest();
  };
  EXPECT_TRUE(after_grants({5, 5}));
  EXPECT_FALSE(after_grants({10})) << "one still waits for its pages";
  EXPECT_FALSE(after_grants({5, 4})) << "a token waits for them";
}

// ---- Room ----

TEST_F(PairingBooksTest, APromptThatFillsAPageTakesNoOther) {
  Pair pair = pair_;
  pair.page_size = 500;
  pair.decode_slots = 10;
  pair.decode_capacity_tokens = 100'000;
  books_.Begin(pair, 500, 500);
  EXPECT_TRUE(books_.Choose({pair}, 500, 500, nullptr).ok()) << "one page is free";
  books_.Begin(pair, 500, 500);
  EXPECT_FALSE(books_.Choose({pair}, 500, 500, nullptr).ok()) << "to the last token";
}

TEST_F(PairingBooksTest, TheLargestRequestsThatFitAreTaken) {
  EXPECT_TRUE(books_.Choose({pair_}, 1000, 500, nullptr).ok());
  const absl::Status status = books_.Choose({pair_}, 1000, 501, nullptr).status();
  EXPECT_NE(status.message().find("hold at most 1500 tokens"), std::string::npos) << status;
}

TEST_F(PairingBooksTest, APairThatIsTooSmallKeepsNobodyFromTheNext) {
  std::vector<Pair> pairs = {PairOf("c0", "d0"), PairOf("c1", "d1")};
  pairs[0].chain.max_prompt_tokens = 5;
  EXPECT_EQ(books_.Choose(pairs, 10, 10, nullptr)->decode.id, "d1");
}

TEST_F(PairingBooksTest, AGrantMayMakeRoom) {
  Pair pair = pair_;
  pair.decode_slots = 10;
  const auto has_room = [&] { return books_.Choose({pair}, 10, 10, nullptr).ok(); };
  books_.Begin(pair, 5, 1'990);
  books_.Begin(pair, 5, 6);
  EXPECT_FALSE(has_room()) << "one waits already";
  const uint64_t changes = books_.changes();
  books_.Granted(pair, 5);
  EXPECT_GT(books_.changes(), changes);
  EXPECT_TRUE(has_room());
}

// ---- What is reported ----

TEST_F(PairingBooksTest, WhoReportsNothingHasNothing) {
  const std::vector<Pair> pairs = {pair_, PairOf("c1", "d1")};
  books_.Report(pair_.chain.stage0, WorkerLoad(), 0);
  books_.Report(pair_.decode, WorkerLoad(), 0);
  EXPECT_EQ(books_.Choose(pairs, 10, 10, nullptr)->chain.chain_id, "c0") << "the first of equals";
}

TEST_F(PairingBooksTest, ARequestMayFillWhatOthersLeave) {
  std::vector<Pair> pairs = {PairOf("c0", "d0"), PairOf("c0", "d1")};
  for (Pair& pair : pairs) pair.decode_slots = 10;
  books_.Begin(pairs[0], 1, 499);
  for (int i = 0; i < 2; ++i) books_.Begin(pairs[1], 1, 1);
  books_.Report(pairs[0].decode, {.running_requests = 1}, 500);
  EXPECT_EQ(books_.Choose(pairs, 10, 1490, nullptr)->decode.id, "d0") << "1500 tokens are free";
  books_.Report(pairs[0].decode, {.running_requests = 1}, 501);
  EXPECT_EQ(books_.Choose(pairs, 10, 1490, nullptr)->decode.id, "d1");
}

// ---- Who is lost, and who comes back ----

TEST_F(PairingBooksTest, AWorkerKeepsWhatItHasRefusedUntilItIsLost) {
  for (const InstanceRef& worker : {pair_.chain.stage0, pair_.decode}) {
    for (const bool back : {false, true}) {
      TestPairing books(Policy::kLeastLoad);
      books.Begin(pair_, 5, 6);
      books.Refused(worker, 1000, 0);
      books.Forget(worker);
      if (back) books.Begin(pair_, 5, 6);  // The same life of it registered again.
      for (int i = 0; i < (back ? 2 : 1); ++i) {
        if (i == 0 && back) books.Granted(pair_, 5);
        books.EndPrefill(pair_, 5);
        books.EndDecode(pair_, 5, 6);
      }
      ASSERT_TRUE(books.AtRest());
      EXPECT_EQ(books.Choose({pair_}, 10, 10, nullptr).ok(), !back) << worker.id;
    }
  }
}

TEST_F(PairingBooksTest, EachLimitIsRaisedInItsTime) {
  const Pair other = PairOf("c1", "d1");
  for (const Pair& pair : {pair_, other}) books_.Begin(pair, 5, 6);
  books_.Refused(pair_.decode, 1'000'000, 0);
  books_.Refused(other.decode, 3'000'000, 0);
  EXPECT_EQ(books_.NextUs(), 1'000'000);
  books_.Advance(1'000'000);
  EXPECT_GT(books_.NextUs(), 1'000'000);
  EXPECT_LE(books_.NextUs(), 1'000'000 + BackoffRange{}.first_us) << "the first one's next raise";
  books_.Forget(pair_.decode);
  books_.EndDecode(pair_, 5, 6);
  books_.Advance(2'000'000);
  EXPECT_EQ(books_.NextUs(), 3'000'000);
}

TEST_F(PairingBooksTest, RefusalsOfWhoHasNoWorkAreNoNews) {
  books_.Refused({"d7", 1}, 1000, 0);
  EXPECT_EQ(books_.NextUs(), kNeverUs);
}

TEST_F(PairingBooksTest, AnEndedRequestStillTellsWhoWasUsedLast) {
  TestPairing books(Policy::kRoundRobin);
  const std::vector<Pair> pairs = {PairOf("c0", "d0"), PairOf("c0", "d1"), PairOf("c1", "d0"),
                                   PairOf("c1", "d1")};
  std::vector<std::string> chosen;
  for (int i = 0; i < 3; ++i) {
    const Pair pair = *books.Choose(pairs, 10, 10, nullptr);
    chosen.push_back(pair.chain.chain_id + "+" + pair.decode.id);
    books.Begin(pair, 10, 10);
    books.EndPrefill(pair, 10);
    books.EndDecode(pair, 10, 10);
  }
  EXPECT_EQ(chosen, (std::vector<std::string>{"c0+d0", "c1+d1", "c0+d0"}));
}

// ---- What a request takes at first ----

TEST_F(PairingBooksTest, ATextCountsWithItsReserve) {
  Pair pair = TestPair("c0", "d0");  // 2000 tokens of decode.
  pair.decode_slots = 100;
  TestPairing whole{Policy::kLeastLoad};
  EXPECT_FALSE(whole.Begin(pair, 100, 1300));
  EXPECT_TRUE(whole.Begin(pair, 100, 1300));
  pair.reserved_tokens = 300;
  TestPairing books{Policy::kLeastLoad};
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(books.Begin(pair, 100, 1300));
  EXPECT_TRUE(books.Begin(pair, 100, 1300));
  EXPECT_TRUE(books.Begin(pair, 100, 200));
  for (int i = 0; i < 2; ++i) books.Granted(pair, 100);
  for (int i = 0; i < 7; ++i) books.EndPrefill(pair, 100);
  books.EndDecode(pair, 100, 200);
  for (int i = 0; i < 6; ++i) books.EndDecode(pair, 100, 1300);
  EXPECT_EQ(books.mended_total(), 0);
  EXPECT_TRUE(books.AtRest());
}

}  // namespace
}  // namespace baton::router
