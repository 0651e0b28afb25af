#include "common/engine/sampling/token_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/random.h"

namespace baton {
namespace {

// The definition: the same weights, sorted in full.
struct Sorted {
  Sorted(const std::vector<float>& logits, float max, double temperature,
         const kernels::KernelTable& kernels)
      : weights(logits.size()), ranking(logits.size()) {
    std::vector<uint16_t> unused(logits.size());
    total = kernels.weigh(logits.data(), logits.size(), max,
                          static_cast<float>(1.4426950408889634 / temperature), weights.data(),
                          unused.data());
    std::iota(ranking.begin(), ranking.end(), 0);
    std::stable_sort(ranking.begin(), ranking.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
  }
  uint64_t WeightOf(size_t i) const { return weights[static_cast<size_t>(ranking[i])]; }
  uint64_t OfFirst(size_t count) const {
    uint64_t sum = 0;
    for (size_t i = 0; i < std::min(count, ranking.size()); ++i) sum += WeightOf(i);
    return sum;
  }
  uint64_t OfNucleus(double share, uint64_t whole) const {
    uint64_t sum = 0;
    for (size_t i = 0; i < ranking.size(); ++i) {
      sum += WeightOf(i);
      if (static_cast<double>(sum) >= share * static_cast<double>(whole)) break;
    }
    return sum;
  }
  int32_t ByRank(uint64_t at) const {
    size_t i = 0;
    while (WeightOf(i) <= at) at -= WeightOf(i++);
    return ranking[i];
  }

  std::vector<uint32_t> weights;
  std::vector<int32_t> ranking;
  uint64_t total = 0;
};

std::vector<float> Logits(Random& random, size_t count, int kind) {
  std::vector<float> logits(count);
  for (float& logit : logits) {
    const double uniform = random.Uniform();
    switch (kind) {
      case 0:  // Flat.
        logit = static_cast<float>(uniform);
        break;
      case 1:  // Many ties.
        logit = std::floor(static_cast<float>(6 * uniform));
        break;
      case 2:  // Peaked: most weigh nothing.
        logit = static_cast<float>(-60 * uniform);
        break;
      default:  // One masked in three.
        logit = uniform < 0.3 ? -std::numeric_limits<float>::infinity()
                              : static_cast<float>(10 * uniform);
    }
  }
  return logits;
}

class TokenWeightsTest : public testing::TestWithParam<const kernels::KernelTable*> {};

TEST_P(TokenWeightsTest, SelectsWhatAFullSortWould) {
  const kernels::KernelTable& kernels = *GetParam();
  Random random(20261121);
  for (int trial = 0; trial < 120; ++trial) {
    const size_t count = static_cast<size_t>(random.Between(1, trial % 10 == 0 ? 20000 : 500));
    const std::vector<float> logits = Logits(random, count, trial % 4);
    const float max = *std::max_element(logits.begin(), logits.end());
    if (!std::isfinite(max)) continue;
    const double temperature = 0.25 + 2 * random.Uniform();
    const Sorted sorted(logits, max, temperature, kernels);
    TokenWeights weights(static_cast<int>(count), kernels);
    weights.Weigh(logits, max, temperature);
    ASSERT_EQ(weights.total(), sorted.total);
    for (int draw = 0; draw < 8; ++draw) {
      const auto first = static_cast<size_t>(random.Between(1, static_cast<int64_t>(count)));
      const uint64_t whole = weights.OfFirst(first);
      ASSERT_EQ(whole, sorted.OfFirst(first)) << first << " of " << count;
      const double share = random.Uniform() + 1e-9;
      const uint64_t kept = weights.OfNucleus(share, whole);
      ASSERT_EQ(kept, sorted.OfNucleus(share, whole)) << share << " of " << first;
      const uint64_t at = random.Below(kept);
      ASSERT_EQ(weights.ByRank(at), sorted.ByRank(at));
    }
  }
}

TEST_P(TokenWeightsTest, KeepsTheFirstAndDrawsInTheOrderOfIds) {
  Random random(7);
  for (int trial = 0; trial < 60; ++trial) {
    const size_t count = static_cast<size_t>(random.Between(2, 9000));
    const std::vector<float> logits = Logits(random, count, trial % 4);
    const float max = *std::max_element(logits.begin(), logits.end());
    Sorted sorted(logits, max, 1, *GetParam());
    TokenWeights weights(static_cast<int>(count), *GetParam());
    weights.Weigh(logits, max, 1);
    const auto kept = static_cast<size_t>(random.Between(1, static_cast<int64_t>(count)));
    const double share = trial % 2 == 0 ? 0.01 : 0;
    weights.KeepFirst(kept);
    if (share > 0) {
      EXPECT_LE(weights.OfAtLeast(share), weights.total());
      const uint64_t expected = weights.OfAtLeast(share);
      weights.KeepAtLeast(share);
      ASSERT_EQ(weights.total(), expected);
    }
    for (size_t i = 0; i < count; ++i) {
      auto& weight = sorted.weights[static_cast<size_t>(sorted.ranking[i])];
      if (i >= kept || weight < share * kernels::kUnitWeight) weight = 0;
    }
    uint64_t total = 0;
    for (const uint32_t weight : sorted.weights) total += weight;
    ASSERT_EQ(weights.total(), total);
    for (int draw = 0; draw < 8; ++draw) {
      const uint64_t at = random.Below(total);
      uint64_t rest = at;
      size_t token = 0;
      while (sorted.weights[token] <= rest) rest -= sorted.weights[token++];
      ASSERT_EQ(weights.ById(at), static_cast<int32_t>(token));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, TokenWeightsTest, testing::ValuesIn(kernels::AvailableKernels()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace baton
