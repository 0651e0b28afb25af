#include "common/engine/native/feed_forward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "common/base/random.h"
#include "common/engine/native/native_linear.h"

namespace baton {
namespace {

std::vector<ExpertShare> Route(const std::vector<float>& scores, size_t active, bool normalise) {
  Experts experts;
  experts.count = static_cast<int>(scores.size());
  experts.active = static_cast<int>(active);
  experts.normalise = normalise;
  std::vector<ExpertShare> chosen(active);
  ExpertRouter(experts).Route(scores, {}, chosen);
  return chosen;
}

TEST(RouteTokenTest, TakesTheHighestScoresAndTheLowestIdOnATie) {
  const auto chosen = Route({1, 3, 2, 3, 0}, 3, true);
  EXPECT_EQ(chosen[0].expert, 1);
  EXPECT_EQ(chosen[1].expert, 3);
  EXPECT_EQ(chosen[2].expert, 2);
}

TEST(RouteTokenTest, WeightsAreTheSoftmaxOverAllExpertsOrOverTheChosen) {
  const std::vector<float> scores = {0.5f, -1, 2, 1};
  double all = 0;
  for (const float score : scores) all += std::exp(score);
  const auto plain = Route(scores, 2, false);
  EXPECT_FLOAT_EQ(plain[0].weight, static_cast<float>(std::exp(2.0) / all));
  EXPECT_FLOAT_EQ(plain[1].weight, static_cast<float>(std::exp(1.0) / all));
  const auto normalised = Route(scores, 2, true);
  EXPECT_FLOAT_EQ(normalised[0].weight + normalised[1].weight, 1);
  EXPECT_FLOAT_EQ(normalised[0].weight, static_cast<float>(1 / (1 + std::exp(-1.0))));
}

TEST(RouteTokenTest, ScoresThatAreNoNumbersGiveDifferentExpertsAllTheSame) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto chosen = Route({nan, nan, nan}, 3, true);
  EXPECT_EQ(chosen[0].expert, 0);
  EXPECT_EQ(chosen[1].expert, 1);
  EXPECT_EQ(chosen[2].expert, 2);
}

TEST(RouteTokenTest, ScoresFarApartDoNotOverflow) {
  const auto chosen = Route({-3e38f, 3e38f}, 2, true);
  EXPECT_EQ(chosen[0].expert, 1);
  EXPECT_EQ(chosen[0].weight, 1);
  EXPECT_EQ(chosen[1].weight, 0);
}

// Six experts in three groups of which one or two are kept.
Experts Grouped(ExpertScore score, GroupScore by, int kept, int active) {
  Experts experts;
  experts.count = 6;
  experts.active = active;
  experts.score = score;
  experts.groups = 3;
  experts.groups_kept = kept;
  experts.group_score = by;
  experts.scaling = 2;
  return experts;
}

TEST(RouteTokenTest, ExpertsOfTheBestGroupsAloneAreChosen) {
  const std::vector<float> scores = {3, -9, 2, 1.5f, 1, 1};
  std::vector<ExpertShare> chosen(2);
  ExpertRouter(Grouped(ExpertScore::kSoftmax, GroupScore::kBest, 1, 2)).Route(scores, {}, chosen);
  EXPECT_EQ(chosen[0].expert, 0);
  EXPECT_EQ(chosen[1].expert, 1) << "though it has the lowest score of all";
  double all = 0;
  for (const float score : scores) all += std::exp(score);
  EXPECT_FLOAT_EQ(chosen[0].weight, static_cast<float>(2 * std::exp(3.0) / all));

  // By the sum of their two best the second group is better.
  ExpertRouter(Grouped(ExpertScore::kSoftmax, GroupScore::kSumOfTwo, 1, 2))
      .Route(scores, {}, chosen);
  EXPECT_EQ(chosen[0].expert, 2);
  EXPECT_EQ(chosen[1].expert, 3);
}

TEST(RouteTokenTest, ABiasChangesTheChoiceButNoWeight) {
  Experts experts = Grouped(ExpertScore::kSigmoid, GroupScore::kSumOfTwo, 2, 3);
  experts.bias = true;
  experts.normalise = true;
  const std::vector<float> scores = {0, 0, 1, 1, 0.5f, 0.5f};
  // Negative merits of kept groups still come before experts of the others.
  const std::vector<float> bias = {-0.1f, 0.3f, -3, -3, -1, -1};
  std::vector<ExpertShare> chosen(3);
  ExpertRouter(experts).Route(scores, bias, chosen);
  EXPECT_EQ(chosen[0].expert, 1);
  EXPECT_EQ(chosen[1].expert, 0);
  EXPECT_EQ(chosen[2].expert, 4);
  const double last = 1 / (1 + std::exp(-0.5));
  EXPECT_FLOAT_EQ(chosen[2].weight, static_cast<float>(2 * last / (1 + last)));
  EXPECT_FLOAT_EQ(chosen[0].weight, chosen[1].weight);
}

// One sparse layer of random weights.
class SparseLayerTest : public testing::Test {
 protected:
  static constexpr int kHidden = 40;  // No multiple of a panel.
  static constexpr int kInner = 24;
  static constexpr int kExperts = 6;
  static constexpr int kActive = 2;

  SparseLayerTest() {
    sizes_.hidden_size = kHidden;
    sizes_.rms_norm_eps = 1e-6;
    sizes_.experts.count = kExperts;
    sizes_.experts.active = kActive;
    sizes_.experts.inner = kInner;
    sizes_.experts.normalise = true;
  }

  std::vector<float> Random(size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(random_.Uniform()) - 0.5f;
    return values;
  }
  std::unique_ptr<Linear> Matrix(int outputs, int inputs, const std::vector<float>& values) {
    auto linear = MakeNativeLinear(outputs, inputs, ElementType::kFloat32, kernels_, threads_);
    linear->SetRows(reinterpret_cast<const std::byte*>(values.data()), nullptr, 0, outputs);
    return linear;
  }
  // The layer of experts `held`; the same weights each time.
  LayerBlock Block(IndexRange held) {
    random_ = baton::Random(3);
    LayerBlock block;
    block.sparse = true;
    block.post_attention_norm.assign(kHidden, 1);
    block.router = Matrix(kExperts, kHidden, Random(size_t{kExperts} * kHidden));
    for (int expert = 0; expert < kExperts; ++expert) {
      GatedBlock gated;
      gated.gate_up = Matrix(2 * kInner, kHidden, Random(size_t{2} * kInner * kHidden));
      gated.down = Matrix(kHidden, kInner, Random(size_t{kHidden} * kInner));
      if (held.Contains(expert)) block.experts.push_back(std::move(gated));
    }
    return block;
  }
  std::vector<float> Apply(IndexRange held, const std::vector<float>& x) {
    FeedForward layer(kernels_, sizes_, held);
    std::vector<float> y(x.size());
    layer.Apply(Block(held), x.data(), static_cast<int>(x.size()) / kHidden, y.data());
    return y;
  }

  const kernels::KernelTable& kernels_ = *kernels::FindKernels("");
  ThreadPool threads_{2};
  baton::Random random_{5};
  ModelConfig sizes_;
};

// More rows than an expert's buffers hold at once.
TEST_F(SparseLayerTest, ARowsBitsDoNotDependOnItsCompany) {
  constexpr int kRows = 1000;
  const std::vector<float> x = Random(size_t{kRows} * kHidden);
  const std::vector<float> together = Apply({0, kExperts}, x);
  for (const int row : {0, 1, 500, 999}) {
    const auto begin = static_cast<ptrdiff_t>(row) * kHidden;
    const std::vector<float> alone =
        Apply({0, kExperts}, {x.begin() + begin, x.begin() + begin + kHidden});
    const std::vector<float> expected(together.begin() + begin, together.begin() + begin + kHidden);
    EXPECT_EQ(alone, expected) << row;
  }
}

TEST_F(SparseLayerTest, WhatTheRanksAddIsWhatAllExpertsAdd) {
  const std::vector<float> x = Random(size_t{20} * kHidden);
  const std::vector<float> whole = Apply({0, kExperts}, x);
  const std::vector<float> first = Apply({0, 4}, x);
  const std::vector<float> second = Apply({4, kExperts}, x);
  bool both = false;
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(first[i] + second[i], whole[i], 1e-6f) << i;
    both = both || (first[i] != 0 && second[i] != 0);
  }
  EXPECT_TRUE(both);
}

}  // namespace
}  // namespace baton
