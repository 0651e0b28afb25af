// Which candidates Pairing finds in large clusters and in small ones, what it predicts of caches,
// and what it learns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/base/status.h"
#include "services/router/core/pairing_fixture.h"
#include "services/router/core/prefix_keys.h"

namespace baton::router {
namespace {

using ::testing::SizeIs;

constexpr int kPage = 16;

std::vector<uint64_t> KeysOf(int tokens, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random.Below(1000));
  return PrefixKeys(prompt, "");
}

// So many chains and decode services, or so many colocated chains.
class ChoiceTest : public ::testing::Test {
 protected:
  static GridName ChainName(int chain) { return {Role::kPrefill, false, Chain(chain)}; }
  static std::string Chain(int chain) { return "c" + std::to_string(chain); }

  static Side ChainSide(int chain, bool colocated) {
    Side side;
    side.pair = colocated ? TestColocatedPair(Chain(chain)) : Pair();
    if (!colocated) side.pair.chain = TestPair(Chain(chain), "d").chain;
    side.pair.page_size = kPage;
    side.pair.chain.capacity_tokens = side.pair.chain.max_prompt_tokens = 8192;
    if (colocated) side.pair.max_context_tokens = side.pair.decode_capacity_tokens = 8192;
    return side;
  }
  void Reset(Policy policy, int chains, int decodes) {
    pairing_.emplace(policy, 7);
    roster_ = {};
    for (int i = 0; i < chains; ++i) {
      roster_.chains.Put(ChainName(i), ChainSide(i, decodes == 0));
    }
    for (int i = 0; i < decodes; ++i) {
      const std::string id = "d" + std::to_string(i);
      Side side;
      side.pair = TestPair("c", id);
      side.pair.chain = {};
      side.pair.page_size = kPage;
      side.pair.max_context_tokens = side.pair.decode_capacity_tokens = 8192;
      roster_.decodes.Put({Role::kDecode, true, id}, side);
    }
  }
  // Chooses and begins; what it begins with.
  Pair Give(const Ask& ask) {
    auto choice = pairing_->Choose(roster_, ask, nullptr);
    EXPECT_TRUE(choice.ok()) << choice.status();
    kind_ = choice->kind;
    predicted_ = pairing_->Note(choice->pair, ask);
    pairing_->Begin(choice->pair, ask.prompt_tokens, ask.max_tokens, predicted_.cached_tokens);
    return choice->pair;
  }
  void End(const Pair& pair, const Ask& ask) {
    pairing_->EndPrefill(pair, ask.prompt_tokens, predicted_.cached_tokens);
    pairing_->EndDecode(pair, ask.prompt_tokens, ask.max_tokens);
  }

  std::optional<Pairing> pairing_;
  Roster roster_;
  ChoiceKind kind_ = ChoiceKind::kUncached;
  Predicted predicted_;
};

constexpr Policy kAll[] = {Policy::kCost,           Policy::kLeastLoad,    Policy::kRoundRobin,
                           Policy::kRandom,         Policy::kPowerOfTwo,   Policy::kCacheAware,
                           Policy::kConsistentHash, Policy::kLengthBuckets};

// What the books have is the same whatever the policy, and everyone is given something.
TEST_F(ChoiceTest, EveryPolicyUsesSmallClustersAndLargeOnes) {
  for (const Policy policy : kAll) {
    for (const auto& [chains, decodes] :
         std::vector<std::pair<int, int>>{{3, 2}, {6, 0}, {100, 50}, {200, 0}}) {
      Reset(policy, chains, decodes);
      std::set<std::string> used;
      for (int i = 0; i < 20 * chains; ++i) {
        const std::vector<uint64_t> keys = KeysOf(200, static_cast<uint64_t>(i));
        const Ask ask = {200 + i % 50, 10, false, keys};
        const Pair pair = Give(ask);
        used.insert(pair.chain.chain_id);
        End(pair, ask);
      }
      const bool by_length = policy == Policy::kLengthBuckets;
      EXPECT_GE(used.size(), static_cast<size_t>(by_length ? 1 : chains * 2 / 3))
          << static_cast<int>(policy) << ": " << chains << " chains";
      EXPECT_TRUE(pairing_->AtRest());
      EXPECT_EQ(pairing_->mended_total(), 0);
    }
  }
}

TEST_F(ChoiceTest, TheLeastLoadedOfManyIsFound) {
  Reset(Policy::kLeastLoad, 100, 100);
  std::map<std::string, int> given;
  std::map<std::string, int> decoded;
  for (int i = 0; i < 300; ++i) {
    const Pair pair = Give({100, 10});
    ++given[pair.chain.chain_id];
    ++decoded[pair.decode.id];
  }
  ASSERT_THAT(given, SizeIs(100));
  for (const auto& [chain, times] : given) EXPECT_EQ(times, 3) << chain;
  for (const auto& [decode, times] : decoded) EXPECT_EQ(times, 3) << decode;
}

TEST_F(ChoiceTest, RoomIsFoundWhereverItIs) {
  for (const Policy policy : kAll) {
    Reset(policy, 100, 30);
    std::vector<Pair> begun;
    begun.reserve(60);
    // One for each decode service, and one that waits there.
    for (int i = 0; i < 60; ++i) begun.push_back(Give({8000, 10}));
    const auto none = pairing_->Choose(roster_, {16, 10}, nullptr);
    ASSERT_TRUE(IsOverloaded(none.status())) << none.status();
    pairing_->EndPrefill(begun[10], 8000);
    pairing_->EndDecode(begun[10], 8000, 10);
    const auto one = pairing_->Choose(roster_, {16, 10}, nullptr);
    ASSERT_TRUE(one.ok()) << one.status();
    EXPECT_EQ(one->pair.decode.id, begun[10].decode.id);
  }
}

TEST_F(ChoiceTest, ChainsThatComeAndGoAreFollowed) {
  for (const int chains : {4, 100}) {
    Reset(Policy::kRoundRobin, chains, 0);
    Give({100, 10});
    for (int i = 1; i < chains; ++i) roster_.chains.Rest(ChainName(i));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Give({100, 10}).chain.chain_id, "c0");
    roster_.chains.Remove(ChainName(1));
    roster_.chains.Put(ChainName(2), ChainSide(2, true));
    EXPECT_EQ(Give({100, 10}).chain.chain_id, "c2");
    roster_.chains.Remove(ChainName(0));
    roster_.chains.Put(ChainName(chains), ChainSide(chains, true));  // In a slot that is free.
    EXPECT_EQ(Give({100, 10}).chain.chain_id, Chain(chains));
    EXPECT_EQ(Give({100, 10}).chain.chain_id, "c2");
  }
}

// ---- What is cached ----

TEST_F(ChoiceTest, AHolderOfManyIsFound) {
  for (const int chains : {5, 300}) {
    Reset(Policy::kCost, chains, 0);
    std::map<uint64_t, std::string> holder;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<uint64_t> keys = KeysOf(320, seed);
      const Ask ask = {320, 10, false, keys};
      const Pair pair = Give(ask);
      EXPECT_EQ(kind_, ChoiceKind::kUncached);
      holder[seed] = pair.chain.chain_id;
      End(pair, ask);
    }
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<uint64_t> keys = KeysOf(320, seed);
      const Ask ask = {320, 10, false, keys};
      const Pair pair = Give(ask);
      EXPECT_EQ(pair.chain.chain_id, holder[seed]);
      EXPECT_EQ(kind_, ChoiceKind::kCached);
      EXPECT_EQ(predicted_.cached_tokens, 304) << "whole pages, and not the last token";
      End(pair, ask);
    }
  }
}

TEST_F(ChoiceTest, ABusyHolderIsPassedOver) {
  Reset(Policy::kCost, 2, 0);
  const std::vector<uint64_t> keys = KeysOf(1024, 1);
  const Ask ask = {1024, 10, false, keys};
  const Pair holder = Give(ask);
  EXPECT_EQ(Give(ask).chain.chain_id, holder.chain.chain_id) << "not busy enough";
  pairing_->Begin(holder, 5000, 10);
  EXPECT_NE(Give(ask).chain.chain_id, holder.chain.chain_id);
  EXPECT_EQ(kind_, ChoiceKind::kPassedOver);
}

TEST_F(ChoiceTest, AnotherLifeOfAChainHasNothing) {
  Reset(Policy::kCost, 2, 0);
  const std::vector<uint64_t> keys = KeysOf(1024, 1);
  const Ask ask = {1024, 10, false, keys};
  const Pair pair = Give(ask);
  End(pair, ask);
  const int chain = pair.chain.chain_id == "c0" ? 0 : 1;
  roster_.chains.Rest(ChainName(chain));
  roster_.chains.Put(ChainName(chain), ChainSide(chain, true));
  End(Give(ask), ask);
  EXPECT_EQ(kind_, ChoiceKind::kCached) << "it was only not ready for a while";
  Side side = ChainSide(chain, true);
  side.pair.decode.incarnation = side.pair.chain.stage0.incarnation = 2;
  side.pair.chain.stages[0].instance.incarnation = 2;
  roster_.chains.Put(ChainName(chain), side);
  Give(ask);
  EXPECT_EQ(kind_, ChoiceKind::kUncached);
}

TEST_F(ChoiceTest, WhatAnswersSayCorrectsThePrediction) {
  Reset(Policy::kCost, 1, 0);
  const auto ask_of = [](const std::vector<uint64_t>& keys) { return Ask{1024, 10, false, keys}; };
  const std::vector<uint64_t> old = KeysOf(1024, 1);
  const std::vector<uint64_t> lost = KeysOf(1024, 2);
  const std::vector<uint64_t> recent = KeysOf(1024, 3);
  const auto predicted = [&](const std::vector<uint64_t>& keys) {
    End(Give(ask_of(keys)), ask_of(keys));
    return predicted_.cached_tokens;
  };
  for (const auto& keys : {old, lost, recent}) EXPECT_EQ(predicted(keys), 0);
  const Pair pair = Give(ask_of(lost));
  pairing_->Correct(pair, predicted_, 256);
  End(pair, ask_of(lost));
  EXPECT_EQ(predicted(old), 0) << "what is older than what is missing is missing too";
  EXPECT_EQ(predicted(recent), 1008);
  EXPECT_EQ(predicted(lost), 1008) << "it has been computed again";
  pairing_->DropPredictions();
  EXPECT_EQ(predicted(lost), 0);
}

TEST_F(ChoiceTest, PromptsOfOtherRoutersCount) {
  for (const int chains : {3, 300}) {
    Reset(Policy::kCost, chains, 0);
    const std::vector<uint64_t> keys = KeysOf(1024, 1);
    const Ask ask = {1024, 10, false, keys};
    const InstanceRef other = ChainSide(chains - 1, true).pair.chain.stage0;
    const std::vector<std::vector<uint64_t>> prompts = {keys};
    EXPECT_TRUE(pairing_->NoteTaken(roster_, other, prompts));
    EXPECT_FALSE(pairing_->NoteTaken(roster_, {"nowhere", 1}, prompts));
    EXPECT_EQ(Give(ask).chain.stage0, other);
    EXPECT_EQ(kind_, ChoiceKind::kCached);
    EXPECT_EQ(predicted_.cached_tokens, 1008);
  }
}

TEST_F(ChoiceTest, AChainThatCachesNothingIsNotPredicted) {
  Reset(Policy::kCost, 1, 0);
  const std::vector<uint64_t> keys = KeysOf(1024, 1);
  const Ask ask = {1024, 10, false, keys};
  const auto answer = [&](int cached) {
    const Pair pair = Give(ask);
    pairing_->Correct(pair, predicted_, cached);
    End(pair, ask);
    return predicted_.cached_tokens;
  };
  EXPECT_EQ(answer(0), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(answer(0), 1008) << i;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(answer(0), 0) << "no more";
  answer(512);
  answer(0);
  EXPECT_EQ(answer(0), 1008) << "it does cache";
}

// ---- Hashes and lengths ----

TEST_F(ChoiceTest, AKeyStaysWhereItIsWhileOthersComeAndGo) {
  for (const int chains : {5, 300}) {
    Reset(Policy::kConsistentHash, chains, 0);
    const auto chain_of = [this](uint64_t key) {
      const Ask ask = {100, 10, false, {}, Mix64(key)};
      const Pair pair = Give(ask);
      End(pair, ask);
      return pair.chain.chain_id;
    };
    std::map<uint64_t, std::string> before;
    for (uint64_t key = 1; key <= 50; ++key) before[key] = chain_of(key);
    for (uint64_t key = 1; key <= 50; ++key) EXPECT_EQ(chain_of(key), before[key]);
    roster_.chains.Remove(ChainName(0));
    roster_.chains.Put(ChainName(1000), ChainSide(1000, true));
    int moved = 0;
    for (uint64_t key = 1; key <= 50; ++key) {
      const std::string now = chain_of(key);
      EXPECT_TRUE(now == before[key] || now == Chain(1000) || before[key] == "c0") << now;
      moved += now == before[key] ? 0 : 1;
    }
    EXPECT_LT(moved, 40);
  }
}

TEST_F(ChoiceTest, AKeyOfAFullChainGoesToTheNextOne) {
  Reset(Policy::kConsistentHash, 300, 0);
  const Ask ask = {100, 10, false, {}, Mix64(1)};
  const std::string owner = Give(ask).chain.chain_id;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Give(ask).chain.chain_id, owner);  // One waits for a place.
  EXPECT_NE(Give(ask).chain.chain_id, owner);
}

TEST_F(ChoiceTest, PromptsOfLikeLengthGoToTheSameChains) {
  Reset(Policy::kLengthBuckets, 4, 0);
  std::map<int, std::set<std::string>> chains_of;
  for (int i = 0; i < 400; ++i) {
    const int tokens = i % 8 == 0 ? 4000 : 100;
    const Ask ask = {tokens, 10};
    const Pair pair = Give(ask);
    if (i > 100) chains_of[tokens].insert(pair.chain.chain_id);
    End(pair, ask);
  }
  for (const std::string& chain : chains_of[100]) EXPECT_FALSE(chains_of[4000].contains(chain));
}

// ---- What is learned ----

TEST_F(ChoiceTest, AChainThatIsSlowIsGivenLess) {
  Reset(Policy::kCost, 2, 0);
  int64_t now_us = 0;
  std::map<std::string, int> given;
  for (int i = 0; i < 100; ++i) {
    const Ask ask = {1000, 10};
    const Pair pair = Give(ask);
    const int64_t begun_us = now_us;
    now_us += pair.chain.chain_id == "c0" ? 100'000 : 20'000;
    pairing_->LearnPrompt(pair, 1000, begun_us, now_us);
    End(pair, ask);
    ++given[pair.chain.chain_id];
  }
  EXPECT_GT(given["c1"], 90);
}

TEST_F(ChoiceTest, AChainThatWasSlowIsTriedAgain) {
  Reset(Policy::kCost, 2, 0);
  const Ask ask = {1000, 10};
  int64_t now_us = 0;
  const auto serve = [&](int64_t took_us) {
    Pair pair = Give(ask);
    now_us += took_us;
    pairing_->LearnPrompt(pair, 1000, now_us - took_us, now_us);
    End(pair, ask);
    return pair;
  };
  serve(1'000'000);
  const Pair slow = serve(8'000'000);
  for (int i = 0; i < 20; ++i) EXPECT_NE(serve(1'000'000).chain.chain_id, slow.chain.chain_id);
  for (int i = 0; i < 4000; ++i) {  // Half an hour of heartbeats.
    for (const char* stage0 : {"c0-0", "c1-0"}) pairing_->Report(PairProcess(stage0), {}, 0);
  }
  bool again = false;
  for (int i = 0; i < 20; ++i)
    again = again || serve(1'000'000).chain.chain_id == slow.chain.chain_id;
  EXPECT_TRUE(again);
}

TEST(PromptCostTest, IsLearnedBySizeForAllChainsTogether) {
  PromptCost cost;
  EXPECT_EQ(cost.Of(1000), 50'000) << "while nothing is known";
  RecentRatio one;
  RecentRatio other;
  for (int i = 0; i < 20; ++i) {
    cost.Learn(300, 3000, one);
    cost.Learn(300, 3000, other);
    cost.Learn(5000, 200'000, other);  // The one never has such prompts.
  }
  EXPECT_NEAR(cost.Of(300), 3000, 1);
  EXPECT_NEAR(cost.Of(5000), 200'000, 1);
  EXPECT_NEAR(cost.Of(600), 6000, 1) << "as the nearest size";
  EXPECT_NEAR(PromptCost::PaceOf(one), 1, 0.01);
  EXPECT_NEAR(PromptCost::PaceOf(other), 1, 0.01) << "long prompts make no slow chain";
}

TEST(PromptCostTest, FewerTokensCostNoMoreThanMore) {
  PromptCost cost;
  RecentRatio chain;
  cost.Learn(144, 2000, chain);
  for (int i = 0; i < 10; ++i) cost.Learn(400, 7000, chain);
  cost.Learn(144, 90'000, chain);  // It was held up.
  EXPECT_LE(cost.Of(144), cost.Of(256));
  EXPECT_LE(cost.Of(255), cost.Of(256));
  EXPECT_NEAR(cost.Of(400), 7000, 500);
}

TEST(RecentMeanTest, OneStallSaysLittle) {
  RecentMean mean;
  mean.Add(100'000);
  for (int i = 0; i < 9; ++i) mean.Add(200);
  EXPECT_LT(mean.Or(0), 11'000) << "the first one counts as the others do";
  for (int i = 0; i < 100; ++i) mean.Add(200);
  mean.Add(1'000'000);
  EXPECT_LT(mean.Or(0), 400);
  for (int i = 0; i < 60; ++i) mean.Add(1'000'000);
  EXPECT_GT(mean.Or(0), 900'000) << "what stays slow is learned";
}

TEST(PromptCostTest, AChainsPaceIsItsOwn) {
  PromptCost cost;
  RecentRatio fast;
  RecentRatio slow;
  for (int i = 0; i < 400; ++i) {
    cost.Learn(3000, 300'000, fast);
    cost.Learn(3000, 900'000, slow);
  }
  EXPECT_NEAR(PromptCost::PaceOf(slow) * cost.Of(3000), 900'000, 90'000);
  EXPECT_NEAR(PromptCost::PaceOf(fast) * cost.Of(3000), 300'000, 30'000);
}

// Two that run together end together: the second seems to take no time.
TEST(PromptCostTest, SingleTimesMakeNoPace) {
  PromptCost cost;
  RecentRatio chain;
  for (int i = 0; i < 100; ++i) {
    cost.Learn(3000, 600'000, chain);
    cost.Learn(3000, 0, chain);
    EXPECT_NEAR(PromptCost::PaceOf(chain), 1, 0.4) << i;
  }
  EXPECT_NEAR(cost.Of(3000), 300'000, 30'000);
}

}  // namespace
}  // namespace baton::router
