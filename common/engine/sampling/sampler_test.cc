#include "common/engine/sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/base/status.h"

namespace baton {
namespace {

// Probabilities 0.5, 0.25, 0.15, 0.1 at temperature 1.
const std::vector<float> kLogits = {std::log(0.15f), std::log(0.5f), std::log(0.1f),
                                    std::log(0.25f)};

absl::StatusOr<SampledToken> Sample(const std::vector<float>& logits, const SamplingParams& params,
                                    uint64_t seed, int position, TokenHistory* history = nullptr) {
  return Sampler(static_cast<int>(logits.size()))
      .Sample({logits, &params, seed, position, history});
}

int32_t Token(const std::vector<float>& logits, const SamplingParams& params, uint64_t seed,
              int position, TokenHistory* history = nullptr) {
  const auto sampled = Sample(logits, params, seed, position, history);
  EXPECT_TRUE(sampled.ok()) << sampled.status();
  return sampled->token;
}

// How often each token comes in `draws` draws.
std::map<int32_t, double> Frequencies(const SamplingParams& params, int draws = 20000) {
  std::map<int32_t, double> frequencies;
  for (int i = 0; i < draws; ++i) frequencies[Token(kLogits, params, 42, i)] += 1.0 / draws;
  return frequencies;
}

std::set<int32_t> Drawn(const SamplingParams& params) {
  std::set<int32_t> tokens;
  for (const auto& [token, frequency] : Frequencies(params, 2000)) tokens.insert(token);
  return tokens;
}

TEST(SampleTest, GreedyTakesTheLowestIdAmongEquals) {
  SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_EQ(Token({1, 3, 2, 3}, greedy, 0, 0), 1);
  EXPECT_EQ(Token({-1, -1}, greedy, 5, 9), 0);
}

TEST(SampleTest, DrawsByProbability) {
  const auto frequencies = Frequencies({});
  EXPECT_NEAR(frequencies.at(1), 0.5, 0.015);
  EXPECT_NEAR(frequencies.at(3), 0.25, 0.015);
  EXPECT_NEAR(frequencies.at(0), 0.15, 0.015);
  EXPECT_NEAR(frequencies.at(2), 0.1, 0.015);
}

TEST(SampleTest, TemperatureSharpens) {
  SamplingParams params;
  params.temperature = 0.5;  // Squares the odds: 25 : 6.25 : 2.25 : 1.
  EXPECT_NEAR(Frequencies(params).at(1), 25 / 34.5, 0.015);
}

TEST(SampleTest, TinyTemperatureIsGreedy) {
  SamplingParams params;
  params.temperature = 1e-300;
  EXPECT_EQ(Drawn(params), (std::set<int32_t>{1}));
}

TEST(SampleTest, FiltersKeepTheMostProbable) {
  SamplingParams params;
  params.top_k = 2;
  EXPECT_EQ(Drawn(params), (std::set<int32_t>{1, 3}));
  EXPECT_NEAR(Frequencies(params).at(1), 2.0 / 3, 0.015);
  params = {};
  params.top_p = 0.8;
  EXPECT_EQ(Drawn(params), (std::set<int32_t>{0, 1, 3}));
  params.top_p = 1e-9;
  EXPECT_EQ(Drawn(params), (std::set<int32_t>{1}));
  params = {};
  params.min_p = 0.25;
  EXPECT_EQ(Drawn(params), (std::set<int32_t>{0, 1, 3}));
  params.top_k = 3;
  params.top_p = 0.6;
  EXPECT_EQ(Drawn(params), (std::set<int32_t>{1, 3}));
}

TEST(SampleTest, TopPEqualsAFullSortOnLargeVocabularies) {
  Random random(3);
  std::vector<float> logits(5000);
  for (float& logit : logits) logit = static_cast<float>(4 * random.Uniform());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  double total = 0;
  for (const float logit : logits) total += std::exp(logit);
  std::set<int32_t> nucleus;
  for (double sum = 0; const int32_t id : order) {
    nucleus.insert(id);
    if ((sum += std::exp(logits[static_cast<size_t>(id)])) >= 0.3 * total) break;
  }
  ASSERT_GT(nucleus.size(), 300u);
  SamplingParams params;
  params.top_p = 0.3;
  for (int i = 0; i < 300; ++i) {
    const int32_t token = Token(logits, params, 1, i);
    ASSERT_TRUE(nucleus.contains(token)) << token;
  }
}

// Every parameter by its definition: doubles, sorted in full.
int32_t Definition(std::vector<float> logits, const SamplingParams& params, uint64_t seed,
                   int position) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  const double max = logits[static_cast<size_t>(order[0])];
  const auto weight = [&](int32_t id) {
    return std::exp((logits[static_cast<size_t>(id)] - max) / params.temperature);
  };
  if (params.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(params.top_k)));
  double total = 0;
  for (const int32_t id : order) total += weight(id);
  double kept = 0;
  size_t end = 0;
  while (end < order.size() && kept < params.top_p * total) kept += weight(order[end++]);
  order.resize(end);
  std::erase_if(order, [&](int32_t id) { return weight(id) < params.min_p; });
  if (params.top_p == 1) std::sort(order.begin(), order.end());
  kept = 0;
  for (const int32_t id : order) kept += weight(id);
  double rest = Random(Mix64(seed) + static_cast<uint64_t>(position)).Uniform() * kept;
  for (const int32_t id : order) {
    if ((rest -= weight(id)) < 0) return id;
  }
  return order.back();
}

TEST(SampleTest, DrawsWhatTheDefinitionSays) {
  Random random(11);
  std::vector<float> logits(3000);
  Sampler sampler(static_cast<int>(logits.size()));
  int different = 0;
  for (int draw = 0; draw < 2000; ++draw) {
    if (draw % 50 == 0) {
      for (float& logit : logits) logit = static_cast<float>(8 * random.Uniform());
    }
    SamplingParams params;
    params.temperature = 0.3 + random.Uniform();
    if (draw % 2 == 0) params.top_p = 0.2 + 0.8 * random.Uniform();
    if (draw % 3 == 0) params.top_k = static_cast<int>(random.Between(1, 3000));
    if (draw % 5 == 0) params.min_p = 0.3 * random.Uniform();
    const auto sampled = sampler.Sample({logits, &params, 5, draw, nullptr});
    ASSERT_TRUE(sampled.ok());
    different += sampled->token != Definition(logits, params, 5, draw) ? 1 : 0;
  }
  // A weight's last bits decide where a draw falls on the edge between two tokens.
  EXPECT_LE(different, 2);
}

TEST(SampleTest, BiasAndPenaltiesChangeTheLogits) {
  const std::vector<float> logits = {2, 1.5, 1, -1};
  SamplingParams greedy;
  greedy.temperature = 0;
  TokenHistory history;
  const auto token = [&](auto change) {
    SamplingParams params = greedy;
    change(params);
    return Token(logits, params, 0, 3, &history);
  };
  EXPECT_EQ(token([](auto& p) { p.logit_bias = {{2, 1.25F}, {0, -0.5F}}; }), 2);
  EXPECT_EQ(token([](auto& p) { p.logit_bias = {{3, 100}}; }), 3);
  EXPECT_EQ(token([](auto& p) { p.presence_penalty = 2; }), 0) << "nothing was generated";
  history.Add(0);
  EXPECT_EQ(token([](auto& p) { p.presence_penalty = 0.4; }), 0);
  EXPECT_EQ(token([](auto& p) { p.presence_penalty = 0.6; }), 1);
  EXPECT_EQ(token([](auto& p) { p.frequency_penalty = 0.4; }), 0);
  history.Add(0);
  EXPECT_EQ(token([](auto& p) { p.presence_penalty = 0.4; }), 0) << "counts once";
  EXPECT_EQ(token([](auto& p) { p.frequency_penalty = 0.4; }), 1) << "counts twice";
  EXPECT_EQ(token([](auto& p) {
              p.frequency_penalty = 0.4;
              p.presence_penalty = -0.6;
            }),
            0);
  EXPECT_EQ(token([](auto& p) { p.repetition_penalty = 1.4; }), 1) << "once, not for each";
  history.SetPrompt(std::vector<int32_t>{1, 1, 0});
  EXPECT_EQ(token([](auto& p) { p.repetition_penalty = 1.4; }), 0) << "2 / 1.4 beats 1.5 / 1.4";
  EXPECT_EQ(token([](auto& p) { p.repetition_penalty = 2; }), 0) << "equals: the lowest id";
  EXPECT_EQ(token([](auto& p) {
              p.repetition_penalty = 2;
              p.logit_bias = {{0, -2.5F}};
            }),
            2)
      << "a negative logit is multiplied";
  EXPECT_EQ(token([](auto& p) { p.presence_penalty = 2; }), 1) << "prompts don't count";
}

TEST(SampleTest, ExtremePenaltiesLeaveADistribution) {
  TokenHistory history;
  history.SetPrompt(std::vector<int32_t>{0, 1, 2, 3});
  SamplingParams params;
  params.repetition_penalty = 1e-38;
  for (int i = 0; i < 20; ++i) {
    const auto sampled = Sample({1, 2, -1, -2}, params, 1, i, &history);
    ASSERT_TRUE(sampled.ok()) << sampled.status();
    EXPECT_LT(sampled->token, 2);
  }
}

TEST(SampleTest, LogprobsAreOnlyTakenIfAskedFor) {
  EXPECT_EQ(Sample(kLogits, {}, 0, 0)->logprob, 0);
}

TEST(SampleTest, ReportsOfTokensThatWereNotDrawn) {
  Sampler sampler(4);
  const auto report = sampler.Report(kLogits, 2, 2);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->token, 2);
  EXPECT_NEAR(report->logprob, std::log(0.1), 1e-6);
  ASSERT_EQ(report->top.size(), 2u);
  EXPECT_EQ(report->top[0].token, 1);
  EXPECT_EQ(report->top[1].token, 3);
  std::vector<float> bad = kLogits;
  bad[0] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sampler.Report(bad, 2, 2).status().code(), absl::StatusCode::kInternal);
}

TEST(SampleTest, TopLogprobsOfEqualsAreInTheOrderOfIds) {
  Sampler sampler(6);
  const auto report = sampler.Report(std::vector<float>{1, 3, 2, 3, 2, 0}, 0, 3);
  EXPECT_EQ(report->top[0].token, 1);
  EXPECT_EQ(report->top[1].token, 3);
  EXPECT_EQ(report->top[2].token, 2);
}

TEST(SampleTest, DrawDependsOnSeedAndPositionAlone) {
  std::set<std::vector<int32_t>> texts;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<int32_t> text(30);
    for (int position = 0; position < 30; ++position) {
      text[static_cast<size_t>(position)] = Token(kLogits, {}, seed, position);
    }
    for (int position = 29; position >= 0; --position) {
      EXPECT_EQ(Token(kLogits, {}, seed, position), text[static_cast<size_t>(position)]);
    }
    texts.insert(text);
  }
  EXPECT_EQ(texts.size(), 20u);
}

TEST(SampleTest, EndsAreMaskedUntilMinTokens) {
  SamplingParams params;
  params.temperature = 0;
  params.min_tokens = 3;
  params.eos_token_ids = {1};
  params.stop_token_ids = {3};
  EXPECT_EQ(Token(kLogits, params, 0, 2), 0);
  EXPECT_EQ(Token(kLogits, params, 0, 3), 1);
  params.ignore_eos = true;
  EXPECT_EQ(Token(kLogits, params, 0, 2), 1);
  EXPECT_FALSE(EndsGeneration(params, 1));
  EXPECT_TRUE(EndsGeneration(params, 3));
}

TEST(SampleTest, LogprobsAreOfTheUnfilteredDistribution) {
  SamplingParams params;
  params.temperature = 0.1;
  params.top_k = 1;
  params.logprobs = true;
  params.top_logprobs = 3;
  params.min_tokens = 1;
  params.logit_bias = {{3, 2}};
  params.eos_token_ids = {1};
  const auto sampled = Sample(kLogits, params, 0, 0);
  ASSERT_TRUE(sampled.ok());
  EXPECT_EQ(sampled->token, 3);
  EXPECT_NEAR(sampled->logprob, std::log(0.25), 1e-6);
  ASSERT_EQ(sampled->top.size(), 3u);
  EXPECT_EQ(sampled->top[0].token, 1);
  EXPECT_NEAR(sampled->top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(sampled->top[1].token, 3);
  EXPECT_EQ(sampled->top[2].token, 0);
}

TEST(SampleTest, MoreLogprobsThanTokensGivesAll) {
  SamplingParams params;
  params.logprobs = true;
  params.top_logprobs = 20;
  EXPECT_EQ(Sample(kLogits, params, 0, 0)->top.size(), 4u);
}

TEST(SampleTest, FailsOnWhatIsNoDistribution) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = kLogits;
    logits[2] = bad;
    const auto sampled = Sample(logits, {}, 0, 0);
    EXPECT_EQ(sampled.status().code(), absl::StatusCode::kInternal);
    EXPECT_NE(sampled.status().message().find("token 2"), absl::string_view::npos);
  }
  SamplingParams params;
  params.min_tokens = 1;
  params.stop_token_ids = {0, 1, 2, 3};
  EXPECT_EQ(Sample(kLogits, params, 0, 0).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace baton
