#include "services/worker/token_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "common/base/status.h"

namespace baton::worker {
namespace {

v1::SamplingParams Complete() {
  v1::SamplingParams sampling;
  sampling.set_seed(7);
  sampling.set_max_tokens(10);
  return sampling;
}

TEST(TokenSamplerTest, DefaultsAreTheContracts) {
  const auto sampler = TokenSampler::Create(Complete(), {2}, 8);
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  EXPECT_EQ(sampler->params().temperature, 1);
  EXPECT_EQ(sampler->params().top_k, 0);
  EXPECT_EQ(sampler->params().top_p, 1);
  EXPECT_EQ(sampler->params().eos_token_ids, std::vector<int32_t>{2});
  EXPECT_EQ(sampler->max_tokens(), 10);
}

TEST(TokenSamplerTest, ZeroTemperatureIsGreedy) {
  v1::SamplingParams sampling = Complete();
  sampling.set_temperature(0);
  const auto sampler = TokenSampler::Create(sampling, {}, 4);
  ASSERT_TRUE(sampler.ok());
  const std::vector<float> logits{0, 3, 1, 2};
  EXPECT_EQ(sampler->Draw(logits, 0)->token, 1);
  EXPECT_EQ(sampler->Draw(logits, 5)->token, 1);
}

TEST(TokenSamplerTest, TheDrawDependsOnSeedAndIndexAlone) {
  const std::vector<float> logits(64, 0.0F);
  const auto a = TokenSampler::Create(Complete(), {}, 64);
  const auto b = TokenSampler::Create(Complete(), {}, 64);
  std::vector<int32_t> first(32);
  for (int i = 0; i < 32; ++i) first[static_cast<size_t>(i)] = a->Draw(logits, i)->token;
  for (int i = 31; i >= 0; --i) {
    EXPECT_EQ(b->Draw(logits, i)->token, first[static_cast<size_t>(i)]);
  }
  EXPECT_NE(std::vector<int32_t>(32, first[0]), first);
}

TEST(TokenSamplerTest, RefusesAndNamesTheField) {
  using Change = std::function<void(v1::SamplingParams&)>;
  const std::vector<std::pair<std::string, Change>> rows{
      {"sampling.seed", [](auto& s) { s.clear_seed(); }},
      {"sampling.max_tokens", [](auto& s) { s.clear_max_tokens(); }},
      {"sampling.max_tokens", [](auto& s) { s.set_max_tokens(0); }},
      {"sampling.min_tokens", [](auto& s) { s.set_min_tokens(-1); }},
      {"sampling.min_tokens", [](auto& s) { s.set_min_tokens(11); }},
      {"sampling.temperature", [](auto& s) { s.set_temperature(-0.1F); }},
      {"sampling.temperature", [](auto& s) { s.set_temperature(std::nanf("")); }},
      {"sampling.temperature",
       [](auto& s) { s.set_temperature(std::numeric_limits<float>::infinity()); }},
      {"sampling.top_k", [](auto& s) { s.set_top_k(-2); }},
      {"sampling.top_p", [](auto& s) { s.set_top_p(0); }},
      {"sampling.top_p", [](auto& s) { s.set_top_p(1.5F); }},
      {"sampling.top_p", [](auto& s) { s.set_top_p(std::nanf("")); }},
      {"sampling.min_p", [](auto& s) { s.set_min_p(-1); }},
      {"sampling.min_p", [](auto& s) { s.set_min_p(std::nanf("")); }},
      {"sampling.top_logprobs", [](auto& s) { s.set_top_logprobs(5); }},
      {"sampling.top_logprobs",
       [](auto& s) {
         s.set_logprobs(true);
         s.set_top_logprobs(21);
       }},
      {"sampling.stop_token_ids", [](auto& s) { s.add_stop_token_ids(8); }},
      {"sampling.stop_token_ids", [](auto& s) { s.add_stop_token_ids(-1); }},
      {"sampling.stop_token_ids",
       [](auto& s) {
         for (int i = 0; i < 65; ++i) s.add_stop_token_ids(1);
       }},
      {"sampling.stop", [](auto& s) { s.add_stop(""); }},
      {"sampling.stop", [](auto& s) { s.add_stop(std::string(1025, 'x')); }},
      {"sampling.stop",
       [](auto& s) {
         for (int i = 0; i < 17; ++i) s.add_stop("x");
       }},
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    v1::SamplingParams sampling = Complete();
    rows[i].second(sampling);
    const auto sampler = TokenSampler::Create(sampling, {2}, 8);
    EXPECT_EQ(FieldOf(sampler.status()), rows[i].first) << "row " << i << sampler.status();
  }
}

}  // namespace
}  // namespace baton::worker
