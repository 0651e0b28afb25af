#include "common/engine/timed/timed_profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace baton {
namespace {

constexpr const char* kGood = R"({
  "name": "toy",
  "model": {
    "layers": 8, "hidden_size": 64, "kv_heads": 2, "head_dim": 16, "context_tokens": 4096,
    "dtype": "bfloat16",
    "kv_dtype": "float32"
  },
  "prefill": {
    "stage_overhead_us": 10, "overhead_us": 80, "prefix_us": 0.8,
    "token_us": 4,
    "attention_us": 0.16, "floor_tokens": 32
  },
  "decode": {
    "overhead_us": 1000
  },
  "noise": {"relative": 0.1, "seed": 7}
}
)";

std::string Changed(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(TimedProfileTest, ReadsAllOfIt) {
  const auto profile = ParseTimedProfile(kGood, "toy.json");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->name, "toy");
  EXPECT_EQ(profile->dtype, ElementType::kBFloat16);
  EXPECT_EQ(profile->kv_dtype, ElementType::kFloat32);
  EXPECT_EQ(profile->noise_seed, 7u);
  EXPECT_EQ(profile->decode.context_us, 0) << "may be missing";
  const ModelConfig config = profile->Apply({});
  EXPECT_EQ(config.num_hidden_layers, 8);
  EXPECT_EQ(config.max_position_embeddings, 4096);
}

TEST(TimedProfileTest, AStageHasItsLayersShareAndAnOverheadOfItsOwn) {
  const auto profile = ParseTimedProfile(kGood, "toy.json");
  ASSERT_TRUE(profile.ok());
  const StageCost quarter = profile->OfStage({2, 4});
  EXPECT_DOUBLE_EQ(quarter.overhead_us, 10 + 20);
  EXPECT_DOUBLE_EQ(quarter.token_us, 1);
  // 30 + 0.2 * 100 + 1 * 64 + 0.04 * (2 * 100 * 64 + 64 * 64)
  EXPECT_DOUBLE_EQ(quarter.Micros(100, 64), 30 + 20 + 64 + 0.04 * (12800 + 4096));
}

TEST(TimedProfileTest, DenseLayersTakeTheirPart) {
  std::string text = Changed("\"layers\": 8", "\"layers\": 8, \"dense_layers\": 2");
  text.replace(text.find("\"floor_tokens\": 32"), 18, "\"floor_tokens\": 32, \"dense_layer\": 0.5");
  text.replace(text.find("\"overhead_us\": 1000"), 19,
               "\"overhead_us\": 1000, \"context_us\": 8, \"dense_layer\": 2");
  const auto profile = ParseTimedProfile(text, "toy.json");
  ASSERT_TRUE(profile.ok()) << profile.status();
  // Two halves and six: 7 in all.
  const StageCost first = profile->OfStage({0, 4});
  const StageCost second = profile->OfStage({4, 8});
  EXPECT_DOUBLE_EQ(first.token_us, 4.0 * 3 / 7);
  EXPECT_DOUBLE_EQ(second.token_us, 4.0 * 4 / 7);
  EXPECT_DOUBLE_EQ(first.overhead_us, 10 + 80.0 * 3 / 7);
  EXPECT_DOUBLE_EQ(first.attention_us, second.attention_us);
  EXPECT_DOUBLE_EQ(first.prefix_us, second.prefix_us);
  EXPECT_EQ(profile->LayerWork(), (std::vector<double>{0.5, 0.5, 1, 1, 1, 1, 1, 1}));
  TimedStep step;
  step.Add(100, 1);
  // Two doubles and six: 10 in all. Attention to 100 tokens takes all layers as long.
  EXPECT_DOUBLE_EQ(TimedSteps(*profile, {0, 4}).Micros(step), 1000 * 0.6 + 8 * 100 * 0.5);
  EXPECT_DOUBLE_EQ(TimedSteps(*profile, {4, 8}).Micros(step), 1000 * 0.4 + 8 * 100 * 0.5);
}

TEST(TimedProfileTest, SaysTheLineAndTheFieldOfWhatIsWrong) {
  struct Case {
    const char* from;
    const char* to;
    std::vector<const char*> says;
  };
  const std::vector<Case> cases = {
      {"\"token_us\": 4,", "", {"line 8", "\"prefill.token_us\"", "missing"}},
      {"\"token_us\": 4,", "\"token_us\": -4,", {"line 10", "\"prefill.token_us\"", "-4"}},
      {"\"token_us\": 4,", "\"token_us\": \"4\",", {"line 10", "\"prefill.token_us\"", "a number"}},
      {"\"token_us\": 4,", "\"token_us\": 1e300,", {"line 10", "\"prefill.token_us\""}},
      {"\"token_us\": 4,", "\"tokens_us\": 4,", {"line 10", "\"prefill.tokens_us\"", "unknown"}},
      {"\"layers\": 8", "\"layers\": 0", {"line 4", "\"model.layers\"", "1 to 4096"}},
      {"\"layers\": 8", "\"layers\": 8.5", {"line 4", "\"model.layers\"", "whole number"}},
      {"\"layers\": 8",
       "\"layers\": 8, \"dense_layers\": 9",
       {"line 4", "\"model.dense_layers\"", "0 to 8"}},
      {"\"overhead_us\": 1000",
       "\"overhead_us\": 1000, \"dense_layer\": -1",
       {"line 14", "\"decode.dense_layer\"", "-1"}},
      {"\"head_dim\": 16", "\"head_dim\": 99999999999", {"line 4", "\"model.head_dim\""}},
      {"\"bfloat16\"", "\"int4\"", {"line 5", "\"model.dtype\"", "int4"}},
      {"\"decode\"", "\"decoding\"", {"line 13", "\"decoding\"", "unknown"}},
      {"\"name\": \"toy\",", "", {"line 1", "\"name\"", "missing"}},
      {"\"noise\": {\"relative\": 0.1",
       "\"noise\": {\"relative\": 2",
       {"line 16", "noise.relative"}},
      {"\"noise\": {\"relative\": 0.1, \"seed\": 7}", "\"noise\": 3", {"line 16", "no object"}},
      {"\"layers\": 8,", "\"layers\": 8", {"line 4", "not valid JSON"}},
      {"\"layers\": 8,", "\"layers\": 8, \"layers\": 9,", {"\"layers\"", "twice"}},
  };
  for (const Case& bad : cases) {
    const auto profile = ParseTimedProfile(Changed(bad.from, bad.to), "toy.json");
    ASSERT_FALSE(profile.ok()) << bad.to;
    EXPECT_EQ(profile.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(profile.status().message());
    EXPECT_EQ(message.rfind("toy.json: ", 0), 0u) << message;
    for (const char* part : bad.says) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    }
  }
  EXPECT_FALSE(ParseTimedProfile("[]", "toy.json").ok());
  EXPECT_FALSE(ParseTimedProfile("", "toy.json").ok());
  EXPECT_EQ(LoadTimedProfile("/nowhere.json").status().code(), absl::StatusCode::kNotFound);
}

TEST(TimedProfileTest, FingerprintsAreTheFiles) {
  const auto one = ParseTimedProfile(kGood, "one.json");
  const auto other = ParseTimedProfile(Changed("\"token_us\": 4", "\"token_us\": 5"), "two.json");
  ASSERT_TRUE(one.ok() && other.ok());
  const ModelConfig config = one->Apply({});
  const ModelFingerprint whole = one->Fingerprint(config, {0, 8});
  const ModelFingerprint half = one->Fingerprint(config, {4, 8});
  EXPECT_EQ(whole.layer_hashes.at(5), half.layer_hashes.at(5));
  EXPECT_NE(whole.layer_hashes.at(5), whole.layer_hashes.at(4));
  EXPECT_NE(whole.layer_hashes.at(5), other->Fingerprint(config, {0, 8}).layer_hashes.at(5));
  EXPECT_EQ(half.embedding_hash, 0u);
  EXPECT_NE(half.head_hash, 0u);
}

// A chunk of `chunk` tokens after another through one stage of all layers; seconds.
double PromptSeconds(const TimedProfile& profile, int tokens, int chunk) {
  double us = 0;
  for (int begin = 0; begin < tokens; begin += chunk) {
    us += profile.OfStage({0, profile.layers}).Micros(begin, std::min(chunk, tokens - begin));
  }
  return us * 1e-6;
}

TEST(TimedProfileTest, WhatShipsGivesThePublishedTimesOfOneStage) {
  const std::string directory = "common/engine/timed/profiles/";
  const auto qwen = LoadTimedProfile(directory + "qwen3-235b-h20.json");
  ASSERT_TRUE(qwen.ok()) << qwen.status();
  EXPECT_NEAR(PromptSeconds(*qwen, 131072, 18432), 55.5, 0.03 * 55.5);
  const auto deepseek = LoadTimedProfile(directory + "deepseek-v3.1-h20.json");
  ASSERT_TRUE(deepseek.ok()) << deepseek.status();
  EXPECT_NEAR(PromptSeconds(*deepseek, 131072, 12288), 48.5, 0.03 * 48.5);
  EXPECT_EQ(deepseek->kv_heads * deepseek->head_dim * deepseek->planes, 576) << "latent elements";
  const auto small = LoadTimedProfile(directory + "qwen3-0.6b-cpu.json");
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->layers, 28);
}

}  // namespace
}  // namespace baton
