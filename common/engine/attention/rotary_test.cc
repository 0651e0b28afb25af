// Frequencies and magnitudes beside those of Hugging Face's transformers
// (tests/parity/rope_fixtures.py).
#include "common/engine/attention/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <vector>

#include "common/model/model_config.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::json;

Json ConfigOf(const Json& shape) {
  Json config = {{"architectures", {"LlamaForCausalLM"}},
                 {"model_type", "llama"},
                 {"intermediate_size", 64},
                 {"num_hidden_layers", 1},
                 {"vocab_size", 64}};
  config.update(shape);
  return config;
}

struct Turn {
  double angle;
  double magnitude;
};

// The angle and length for one position's cosine and sine.
Turn TurnOf(float cos, float sin) { return {std::atan2(sin, cos), std::hypot(cos, sin)}; }

TEST(RotaryTest, TurnsAsHuggingFaceDoes) {
  Json golden;
  std::ifstream("common/engine/attention/testdata/rope.json") >> golden;
  ASSERT_GE(golden["cases"].size(), 8u);
  for (const Json& one : golden["cases"]) {
    SCOPED_TRACE(one["config"]["rope_scaling"].dump());
    const auto config = ParseModelConfig(ConfigOf(one["config"]).dump(), "config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    const Rotary rotary(*config);
    const auto frequencies = one["frequencies"].get<std::vector<double>>();
    ASSERT_EQ(static_cast<size_t>(rotary.half_dim()), frequencies.size());
    std::vector<float> cos(frequencies.size());
    std::vector<float> sin(frequencies.size());
    rotary.Angles(1, cos.data(), sin.data());
    for (size_t i = 0; i < frequencies.size(); ++i) {
      const Turn turn = TurnOf(cos[i], sin[i]);
      EXPECT_NEAR(turn.angle, frequencies[i], 1e-5 * frequencies[i] + 1e-9) << i;
      EXPECT_NEAR(turn.magnitude, one["magnitude"].get<double>(), 1e-6) << i;
    }
  }
}

TEST(RotaryTest, LongRopeTakesItsShortFactorsUnlessItIsStretched) {
  std::vector<double> ones(32, 1.0);
  std::vector<double> tens(32, 10.0);
  const Json shape = {
      {"hidden_size", 256},
      {"num_attention_heads", 4},
      {"max_position_embeddings", 8192},
      {"original_max_position_embeddings", 2048},
      {"rope_scaling", {{"type", "su"}, {"short_factor", ones}, {"long_factor", tens}}}};
  auto config = ParseModelConfig(ConfigOf(shape).dump(), "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->max_position_embeddings, 2048);
  std::vector<float> cos(32);
  std::vector<float> sin(32);
  Rotary(*config).Angles(1, cos.data(), sin.data());
  EXPECT_NEAR(TurnOf(cos[0], sin[0]).angle, 1.0, 1e-6);
  EXPECT_NEAR(TurnOf(cos[0], sin[0]).magnitude, std::sqrt(1 + std::log(4.0) / std::log(2048.0)),
              1e-6);
  for (const int context : {0, 2048}) {
    config->Stretch(context);
    EXPECT_EQ(config->max_position_embeddings, 2048) << context;
  }
  config->Stretch(2049);
  EXPECT_EQ(config->max_position_embeddings, 8192);
  Rotary(*config).Angles(1, cos.data(), sin.data());
  EXPECT_NEAR(TurnOf(cos[0], sin[0]).angle, 0.1, 1e-6);
  EXPECT_NEAR(TurnOf(cos[0], sin[0]).magnitude, std::sqrt(1 + std::log(4.0) / std::log(2048.0)),
              1e-6);
}

}  // namespace
}  // namespace baton
