// What Hugging Face computes for tiny random models, and how near to it we must come;
// tests/parity/make_model_fixtures.py makes the fixtures.
#ifndef COMMON_ENGINE_TESTING_PARITY_FIXTURES_H_
#define COMMON_ENGINE_TESTING_PARITY_FIXTURES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/engine/stage_model.h"
#include "nlohmann/json.hpp"

namespace baton::testing {

inline constexpr const char* kParityFamilies[] = {"llama3", "qwen2", "qwen3"};
// With experts, biases on all projections, a window shorter than the prompts, FP8 weights, latent
// attention, heads that are turned in part,
// norms over all heads, fused projections, norms around a layer's halves with caps and two kinds of
// layers. Those with experts only in float32: rounding to bfloat16 sends tokens to
// others.
inline constexpr const char* kParityVariants[] = {
    "qwen3_moe",     "qwen3_moe_step", "mixtral",     "mistral",        "llama_bias",
    "qwen3_moe_fp8", "deepseek_v2",    "deepseek_v3", "deepseek_dense", "deepseek_v3_fp8",
    "glm4_moe",      "minimax_m2",     "phi3",        "gemma",          "gemma2",
    "gemma3",        "gemma3_images"};
inline constexpr float kParityTolerance = 1e-4f;  // Relative to the largest logit.
// How far rounding to bfloat16 may lead a backend from Hugging Face, whose own logits are up to
// 0.07 of the largest off.
struct Bf16Rounding {
  double distance;  // From float32, over Hugging Face's.
  float tie;        // Two logits nearer than this, relative to the largest.
  int ties;         // Among 128 tokens.
};
// libtorch 1.13 multiplies bfloat16 by oneDNN on processors with AVX-512, and elsewhere by loops of
// its own, which round more often.
inline Bf16Rounding RoundingOf(Backend backend) {
  if (backend == Backend::kNative) return {0.5, 0.05f, 6};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw")) return {1.25, 0.06f, 6};
#endif
  return {1.6, 0.07f, 10};
}

using LogitsByPosition = std::map<int, std::vector<float>>;
// The logits after `tokens`, whose KV goes behind the `prefix` tokens already there.
using Forward = std::function<std::vector<float>(std::span<const int32_t> tokens, int prefix)>;

struct ParityCase {
  std::vector<int32_t> prompt;
  LogitsByPosition logits;      // After some of the prompt's positions.
  std::vector<int32_t> greedy;  // Tokens.
};
// The same prompt in both element types.
struct ParityFixture {
  ParityCase float32;
  ParityCase bfloat16;
};

inline ExecutorOptions ParityOptions(const std::string& family, Backend backend,
                                     ElementType dtype) {
  ExecutorOptions options;
  options.backend = backend;
  options.model_path = "common/engine/testdata/parity/" + family;
  options.page_size = 16;
  options.page_count = 64;
  options.dtype = dtype;
  // tools/gpu/session says it.
  const char* const device = std::getenv("BATON_TEST_DEVICE");
  if (backend == Backend::kTorch && device != nullptr) options.device = device;
  return options;
}

inline ParityCase ParityCaseOf(const nlohmann::json& prompt, const nlohmann::json& expected) {
  ParityCase result{
      prompt.get<std::vector<int32_t>>(), {}, expected["greedy"].get<std::vector<int32_t>>()};
  for (const auto& [key, logits] : expected["logits"].items()) {
    result.logits[std::stoi(key)] = logits.get<std::vector<float>>();
  }
  return result;
}

inline std::vector<ParityFixture> ParityFixtures(const std::string& family) {
  nlohmann::json expected;
  std::ifstream("common/engine/testdata/parity/" + family + "/expected.json") >> expected;
  std::vector<ParityFixture> fixtures;
  for (const auto& one : expected["cases"]) {
    fixtures.push_back({ParityCaseOf(one["prompt"], one),  //
                        ParityCaseOf(one["prompt"], one["bfloat16"])});
  }
  EXPECT_FALSE(fixtures.empty());
  return fixtures;
}

inline float LargestLogit(const std::vector<float>& logits) {
  float largest = 0;
  for (const float logit : logits) largest = std::max(largest, std::fabs(logit));
  return largest;
}

inline int32_t BestToken(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Those after the positions of `expected`, each continuing from the one before.
inline LogitsByPosition LogitsAt(const Forward& forward, const ParityCase& expected) {
  LogitsByPosition all;
  int prefix = 0;
  for (const auto& [position, unused] : expected.logits) {
    const auto count = static_cast<size_t>(position + 1 - prefix);
    all[position] =
        forward(std::span(expected.prompt).subspan(static_cast<size_t>(prefix), count), prefix);
    prefix = position + 1;
  }
  return all;
}

inline void ExpectSameLogits(const Forward& forward, const ParityCase& expected) {
  const LogitsByPosition actual = LogitsAt(forward, expected);
  for (const auto& [position, logits] : expected.logits) {
    for (size_t id = 0; id < logits.size(); ++id) {
      ASSERT_NEAR(actual.at(position)[id], logits[id], kParityTolerance * LargestLogit(logits))
          << "position " << position << ", token " << id;
    }
  }
}

inline void ExpectSameTokens(const Forward& forward, const ParityCase& expected) {
  std::vector<int32_t> tokens;
  std::vector<float> logits = forward(expected.prompt, 0);
  int length = static_cast<int>(expected.prompt.size());
  while (tokens.size() < expected.greedy.size()) {
    tokens.push_back(BestToken(logits));
    logits = forward(std::span(tokens).last(1), length++);
  }
  EXPECT_EQ(tokens, expected.greedy);
}

// Along Hugging Face's own tokens, so that one near tie does not hide all that follows it: each is
// ours as well, or ours beats it by less than what rounding moves logits by. How many such ties.
inline int ExpectSameTokensButForTies(const Forward& forward, const ParityCase& expected,
                                      const Bf16Rounding& rounding) {
  int ties = 0;
  std::vector<float> logits = forward(expected.prompt, 0);
  int length = static_cast<int>(expected.prompt.size());
  for (const int32_t& token : expected.greedy) {
    const int32_t best = BestToken(logits);
    if (best != token) {
      ++ties;
      const float lead = logits[static_cast<size_t>(best)] - logits[static_cast<size_t>(token)];
      EXPECT_LT(lead, rounding.tie * LargestLogit(logits))
          << "step " << length - static_cast<int>(expected.prompt.size());
    }
    logits = forward(std::span(&token, 1), length++);
  }
  return ties;
}

}  // namespace baton::testing

#endif  // COMMON_ENGINE_TESTING_PARITY_FIXTURES_H_
