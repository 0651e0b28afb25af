// Draws on the device that BATON_TEST_DEVICE names, beside Sampler's.
#include "common/engine/torch/torch_draws.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "common/base/random.h"
#include "common/engine/sampling/sampler.h"

namespace baton {
namespace {

struct Asked {
  double temperature;
  int top_k;
  double top_p;
  double min_p;
};

constexpr Asked kAsked[] = {
    {0, 0, 1, 0},       {1, 0, 1, 0},      {0.6, 20, 0.95, 0}, {2, 0, 0.9, 0},    {1.3, 7, 1, 0},
    {1, 0, 1, 0.05},    {1, 50, 0.5, 0.1}, {1e-40, 0, 1, 0},   {30, 0, 0.99, 0},  {1, 1, 1, 0},
    {1, 1 << 30, 1, 0}, {1, 0, 1e-9, 0},   {0.8, 3, 1, 0.2},   {1, 0, 0.99, 0.3},
};

class TorchDrawsTest : public testing::TestWithParam<int> {
 protected:
  TorchDrawsTest() {
    const char* const name = std::getenv("BATON_TEST_DEVICE");
    device_ = std::make_unique<TorchDevice>(*TorchDevice::Open(name == nullptr ? "cpu" : name));
    at::manual_seed(3);
  }

  int vocab() const { return GetParam(); }
  // As a head in bfloat16 has them: many are equal.
  at::Tensor Logits(int64_t rows) const {
    return at::randn({rows, vocab()}).mul(4).to(at::kBFloat16).to(at::kFloat).contiguous();
  }
  std::vector<int64_t> Drawn(const at::Tensor& logits, const std::vector<RowDraw>& draws,
                             int64_t candidates) const {
    const at::Tensor drawn =
        DrawRows(*device_, logits.to(device_->device()), draws, candidates).to(at::kCPU);
    const auto* const ids = drawn.data_ptr<int64_t>();
    return {ids, ids + drawn.numel()};
  }

  const c10::InferenceMode inference_;
  std::unique_ptr<TorchDevice> device_;
};

TEST_P(TorchDrawsTest, AreThoseOfTheHost) {
  constexpr int kRounds = 40;
  Sampler sampler(vocab());
  Random random(5);
  for (int round = 0; round < kRounds; ++round) {
    // All kinds in one call, in another order each time, and calls of one kind.
    std::vector<SamplingParams> params;
    const bool one_kind = round % 4 == 3;
    for (int row = 0; row < 40; ++row) {
      const Asked& asked = kAsked[one_kind ? static_cast<size_t>(round) / 4 % std::size(kAsked)
                                           : random.Below(std::size(kAsked))];
      SamplingParams& own = params.emplace_back();
      own.temperature = asked.temperature;
      own.top_k = asked.top_k;
      own.top_p = asked.top_p;
      own.min_p = asked.min_p;
    }
    const at::Tensor logits = Logits(static_cast<int64_t>(params.size()));
    const int position = round + 1;
    std::vector<RowDraw> draws;
    for (const SamplingParams& own : params) {
      draws.push_back(*Sampler::RowDrawOf(own, static_cast<uint64_t>(round), position));
    }
    const std::vector<int64_t> drawn = Drawn(logits, draws, vocab());
    const auto entered = device_->Enter(Queue::kCompute);
    const std::vector<int64_t> of_few = Drawn(logits, draws, std::min(vocab(), 16));
    const std::vector<int32_t> tokens =
        DrawTokens(*device_, logits.to(device_->device()), draws, std::min(vocab(), 16));
    for (size_t row = 0; row < params.size(); ++row) {
      SCOPED_TRACE(testing::Message() << "round " << round << ", row " << row);
      const std::span<const float> own(
          logits.data_ptr<float>() + row * static_cast<size_t>(vocab()),
          static_cast<size_t>(vocab()));
      const auto expected =
          sampler.Sample({own, &params[row], static_cast<uint64_t>(round), position});
      ASSERT_TRUE(expected.ok()) << expected.status();
      EXPECT_EQ(drawn[row], expected->token);
      EXPECT_EQ(tokens[row], expected->token);
      // Few candidates give the same token or none.
      if (of_few[row] != kTooFewCandidates) {
        EXPECT_EQ(of_few[row], expected->token);
      }
    }
  }
}

TEST_P(TorchDrawsTest, TooFewCandidatesAreToldOfTopPAlone) {
  if (vocab() < 100) return;
  const at::Tensor logits = at::zeros({3, vocab()});
  std::vector<RowDraw> draws(3, RowDraw{.scale = 1, .uniform = 0.99});
  draws[1].top_p = 0.5;
  draws[2].top_p = 0.01;
  const std::vector<int64_t> drawn = Drawn(logits, draws, vocab() / 10);
  EXPECT_EQ(drawn[0], static_cast<int64_t>(0.99 * vocab()));
  EXPECT_EQ(drawn[1], kTooFewCandidates);
  EXPECT_EQ(drawn[2], static_cast<int64_t>(std::ceil(0.01 * vocab()) * 0.99));
  // With top_k, which is among the candidates, they always suffice.
  draws[1].top_k = static_cast<int>(vocab() / 2);
  EXPECT_GE(Drawn(logits, draws, vocab() / 10)[1], 0);
  EXPECT_FALSE(MayLackCandidates({}, vocab()));
  EXPECT_FALSE(MayLackCandidates(draws[0], vocab()));
  EXPECT_FALSE(MayLackCandidates(draws[1], vocab()));
  EXPECT_TRUE(MayLackCandidates(draws[2], vocab()));
  draws[1].top_k = static_cast<int>(vocab());
  EXPECT_TRUE(MayLackCandidates(draws[1], vocab())) << "keeps all";
}

TEST_P(TorchDrawsTest, WhatIsNotFiniteIsToldOfItsRowAlone) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    at::Tensor logits = Logits(6);
    const std::vector<RowDraw> draws = {{.scale = 1, .uniform = 0.3},
                                        {.scale = 1, .uniform = 0.3},
                                        {.scale = 1, .top_p = 0.9, .uniform = 0.3},
                                        {.scale = 1, .top_p = 0.9, .uniform = 0.3},
                                        {},
                                        {}};
    const std::vector<int64_t> expected = Drawn(logits, draws, vocab());
    for (const int64_t row : {1, 3, 5}) logits[row][vocab() - 1] = bad;
    const std::vector<int64_t> drawn = Drawn(logits, draws, vocab());
    for (size_t row = 0; row < draws.size(); ++row) {
      EXPECT_EQ(drawn[row], row % 2 == 1 ? kNotFinite : expected[row]) << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, TorchDrawsTest, testing::Values(1, 2, 33, 5'000));

}  // namespace
}  // namespace baton
