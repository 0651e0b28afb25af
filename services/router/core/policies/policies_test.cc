// What each policy picks, over candidates made here.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "services/router/core/policies/policy.h"

namespace baton::router {
namespace {

Candidate Chain(size_t chain) {
  Candidate candidate;
  candidate.chain = chain;
  candidate.decode_slots = 8;
  return candidate;
}

Candidate Loaded(size_t chain, int64_t queued_tokens, int64_t requests) {
  Candidate candidate = Chain(chain);
  candidate.queued_tokens = queued_tokens;
  candidate.requests = requests;
  return candidate;
}

TEST(PoliciesTest, AreNamedAsTheOptionNamesThem) {
  EXPECT_EQ(ParsePolicy("cost"), Policy::kCost);
  EXPECT_EQ(ParsePolicy("least_load"), Policy::kLeastLoad);
  EXPECT_EQ(ParsePolicy("round_robin"), Policy::kRoundRobin);
  EXPECT_EQ(ParsePolicy("random"), Policy::kRandom);
  EXPECT_EQ(ParsePolicy("power_of_two"), Policy::kPowerOfTwo);
  EXPECT_EQ(ParsePolicy("cache_aware"), Policy::kCacheAware);
  EXPECT_EQ(ParsePolicy("consistent_hash"), Policy::kConsistentHash);
  EXPECT_EQ(ParsePolicy("length_buckets"), Policy::kLengthBuckets);
}

TEST(PoliciesTest, EachHasItsPick) {
  std::vector<Candidate> candidates = {Chain(0), Chain(1), Chain(2), Chain(3)};
  for (Candidate& candidate : candidates) candidate.chain_used = 10;
  candidates[0].prompt_us = candidates[1].prompt_us = candidates[3].prompt_us = 5;
  candidates[0].ring_distance = candidates[1].ring_distance = candidates[2].ring_distance = 7;
  candidates[0].queued_tokens = candidates[2].queued_tokens = candidates[3].queued_tokens = 9;
  candidates[0].chain_used = 3;
  candidates[3].place = 0.1;
  for (const size_t other : {0, 1, 2}) candidates[other].place = 0.9;
  Random random(1);
  const Asked asked = {.prompt_tokens = 100, .has_key = true, .length_place = 0};
  EXPECT_EQ(Pick(Policy::kRoundRobin, candidates, asked, random), 0);
  EXPECT_EQ(Pick(Policy::kLeastLoad, candidates, asked, random), 1);
  EXPECT_EQ(Pick(Policy::kCost, candidates, asked, random), 2);
  EXPECT_EQ(Pick(Policy::kConsistentHash, candidates, asked, random), 3);
  EXPECT_EQ(Pick(Policy::kLengthBuckets, candidates, asked, random), 3);
  EXPECT_EQ(Pick(Policy::kCacheAware, candidates, asked, random), 1) << "none has any of it";
}

// ---- cost ----

TEST(CostTest, AddsAllTimes) {
  for (double Candidate::*part :
       {&Candidate::queue_us, &Candidate::exposed_us, &Candidate::wait_us}) {
    std::vector<Candidate> candidates = {Chain(0), Chain(1)};
    candidates[0].*part = 1000;
    candidates[1].queue_us = 500;
    candidates[1].wait_us = 499;
    EXPECT_EQ(PickByCost(candidates, {}), 1);
    candidates[1].exposed_us = 2;
    EXPECT_EQ(PickByCost(candidates, {}), 0);
  }
}

TEST(CostTest, ABusyHolderIsPassedOver) {
  std::vector<Candidate> candidates = {Chain(0), Chain(1)};
  candidates[0].cached_tokens = 900;
  candidates[0].prompt_us = 100;
  candidates[1].prompt_us = 1000;
  EXPECT_EQ(PickByCost(candidates, {}), 0);
  candidates[0].queue_us = 2600;
  EXPECT_EQ(PickByCost(candidates, {}), 0) << "what is computed again keeps others waiting";
  candidates[0].queue_us = 2701;
  EXPECT_EQ(PickByCost(candidates, {}), 1);
}

TEST(CostTest, TokensBesideOthersCount) {
  std::vector<Candidate> candidates = {Loaded(0, 0, 8), Loaded(1, 0, 0)};
  candidates[0].token_us = candidates[1].token_us = 1000;
  candidates[1].queue_us = 31'000;
  EXPECT_EQ(PickByCost(candidates, {}), 1) << "32 tokens of a full one are slower than that";
  candidates[1].queue_us = 33'000;
  EXPECT_EQ(PickByCost(candidates, {}), 0);
}

TEST(CostTest, OfEqualOnesTheNearestByHashIsTaken) {
  std::vector<Candidate> candidates = {Chain(0), Chain(1)};
  candidates[0].ring_distance = 2;
  candidates[1].ring_distance = 1;
  candidates[1].chain_used = 5;
  EXPECT_EQ(PickByCost(candidates, {}), 1);
}

TEST(CostTest, WhatStandsBesideAFailureIsTheLastChoice) {
  std::vector<Candidate> candidates = {Chain(0), Chain(1)};
  candidates[0].beside = true;
  candidates[1].queue_us = 1e9;
  EXPECT_EQ(PickByCost(candidates, {}), 1);
}

// ---- least_load, round_robin ----

TEST(LeastLoadTest, GoesByWaitingThenTokensThenRequestsThenUse) {
  std::vector<Candidate> candidates = {Loaded(0, 5, 1), Loaded(1, 4, 9)};
  EXPECT_EQ(PickByLeastLoad(candidates), 1);
  candidates[0].queued_tokens = 4;
  EXPECT_EQ(PickByLeastLoad(candidates), 0);
  candidates[0].full = true;
  EXPECT_EQ(PickByLeastLoad(candidates), 1);
  candidates = {Chain(0), Chain(1)};
  EXPECT_EQ(PickByLeastLoad(candidates), 0) << "the first of equals";
  candidates[0].chain_used = 1;
  EXPECT_EQ(PickByLeastLoad(candidates), 1);
}

TEST(RoundRobinTest, HeedsNoLoad) {
  std::vector<Candidate> candidates = {Loaded(0, 500, 9), Loaded(1, 0, 0)};
  candidates[0].full = true;
  candidates[1].chain_used = 1;
  EXPECT_EQ(PickByRoundRobin(candidates), 0);
}

// ---- random, power_of_two ----

TEST(RandomTest, TakesEachAboutAsOften) {
  const std::vector<Candidate> candidates = {Chain(0), Loaded(1, 1000, 7), Chain(2)};
  std::vector<int> taken(3);
  Random random(7);
  for (int i = 0; i < 3000; ++i) ++taken[PickByRandom(candidates, random)];
  for (const int times : taken) EXPECT_NEAR(times, 1000, 120);
}

TEST(PowerOfTwoTest, NeverTakesTheMostLoadedOfThree) {
  const std::vector<Candidate> candidates = {Loaded(0, 30, 0), Loaded(1, 10, 0), Loaded(2, 20, 0)};
  std::set<size_t> taken;
  Random random(7);
  for (int i = 0; i < 200; ++i) taken.insert(PickByPowerOfTwo(candidates, random));
  EXPECT_EQ(taken, (std::set<size_t>{1, 2}));
  EXPECT_EQ(PickByPowerOfTwo(std::vector<Candidate>{Chain(0)}, random), 0);
}

// ---- cache_aware ----

TEST(CacheAwareTest, TakesTheHolderOfMoreThanAThird) {
  std::vector<Candidate> candidates = {Chain(0), Loaded(1, 5000, 7)};
  candidates[1].cached_tokens = 310;
  EXPECT_EQ(PickByCacheAware(candidates, {.prompt_tokens = 1000}), 1);
  candidates[1].cached_tokens = 290;
  EXPECT_EQ(PickByCacheAware(candidates, {.prompt_tokens = 1000}), 0);
}

TEST(CacheAwareTest, GivesWayToUnevenLoad) {
  std::vector<Candidate> candidates = {Chain(0), Loaded(1, 5000, 7)};
  candidates[1].cached_tokens = 1000;
  candidates[0].chain_requests = 10;
  candidates[1].chain_requests = 74;
  EXPECT_EQ(PickByCacheAware(candidates, {.prompt_tokens = 1000}), 1);
  candidates[1].chain_requests = 75;
  EXPECT_EQ(PickByCacheAware(candidates, {.prompt_tokens = 1000}), 0);
  candidates[0].chain_requests = 200;
  candidates[1].chain_requests = 299;
  EXPECT_EQ(PickByCacheAware(candidates, {.prompt_tokens = 1000}), 1) << "not one and a half times";
}

// ---- consistent_hash, length_buckets ----

TEST(ConsistentHashTest, GoesByLoadWithoutAKey) {
  std::vector<Candidate> candidates = {Loaded(0, 100, 0), Loaded(1, 0, 0)};
  candidates[1].ring_distance = 9;
  EXPECT_EQ(PickByConsistentHash(candidates, {.has_key = true}), 0);
  EXPECT_EQ(PickByConsistentHash(candidates, {.has_key = false}), 1);
}

TEST(LengthBucketsTest, TakesTheNearestPlace) {
  std::vector<Candidate> candidates = {Chain(0), Chain(1), Chain(2)};
  for (size_t i = 0; i < 3; ++i) candidates[i].place = (static_cast<double>(i) + 0.5) / 3;
  EXPECT_EQ(PickByLengthBuckets(candidates, {.length_place = 0.1}), 0);
  EXPECT_EQ(PickByLengthBuckets(candidates, {.length_place = 0.5}), 1);
  EXPECT_EQ(PickByLengthBuckets(candidates, {.length_place = 0.99}), 2);
}

}  // namespace
}  // namespace baton::router
