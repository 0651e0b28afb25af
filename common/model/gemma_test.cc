// Configurations of Gemma: published numbers, what is refused by which name, and fingerprints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "common/model/fingerprint.h"
#include "common/model/model_config.h"
#include "common/model/testing/config_checks.h"
#include "common/model/weight_names.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using testing::ExpectOtherFingerprints;
using testing::ExpectRefused;
using testing::Json;
using testing::Parse;

// config.json of Gemma 2B.
Json Gemma2B() {
  return {{"architectures", Json::array({"GemmaForCausalLM"})},
          {"attention_bias", false},
          {"bos_token_id", 2},
          {"eos_token_id", 1},
          {"head_dim", 256},
          {"hidden_act", "gelu"},
          {"hidden_size", 2048},
          {"intermediate_size", 16384},
          {"max_position_embeddings", 8192},
          {"model_type", "gemma"},
          {"num_attention_heads", 8},
          {"num_hidden_layers", 18},
          {"num_key_value_heads", 1},
          {"pad_token_id", 0},
          {"rms_norm_eps", 1e-6},
          {"rope_scaling", nullptr},
          {"rope_theta", 10000.0},
          {"torch_dtype", "bfloat16"},
          {"vocab_size", 256000}};
}

// config.json of Gemma 2 2B.
Json Gemma2() {
  return {{"architectures", Json::array({"Gemma2ForCausalLM"})},
          {"attention_bias", false},
          {"attn_logit_softcapping", 50.0},
          {"bos_token_id", 2},
          {"cache_implementation", "hybrid"},
          {"eos_token_id", {1, 107}},
          {"final_logit_softcapping", 30.0},
          {"head_dim", 256},
          {"hidden_act", "gelu_pytorch_tanh"},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"hidden_size", 2304},
          {"intermediate_size", 9216},
          {"max_position_embeddings", 8192},
          {"model_type", "gemma2"},
          {"num_attention_heads", 8},
          {"num_hidden_layers", 26},
          {"num_key_value_heads", 4},
          {"pad_token_id", 0},
          {"query_pre_attn_scalar", 224},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"sliding_window", 4096},
          {"torch_dtype", "bfloat16"},
          {"vocab_size", 256000}};
}

// config.json of Gemma 3 1B.
Json Gemma3() {
  return {{"architectures", Json::array({"Gemma3ForCausalLM"})},
          {"attention_bias", false},
          {"attn_logit_softcapping", nullptr},
          {"bos_token_id", 2},
          {"cache_implementation", "hybrid"},
          {"eos_token_id", {1, 106}},
          {"final_logit_softcapping", nullptr},
          {"head_dim", 256},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"hidden_size", 1152},
          {"intermediate_size", 6912},
          {"max_position_embeddings", 32768},
          {"model_type", "gemma3_text"},
          {"num_attention_heads", 4},
          {"num_hidden_layers", 26},
          {"num_key_value_heads", 1},
          {"query_pre_attn_scalar", 256},
          {"rms_norm_eps", 1e-6},
          {"rope_local_base_freq", 10000},
          {"rope_scaling", nullptr},
          {"rope_theta", 1000000},
          {"sliding_window", 512},
          {"sliding_window_pattern", 6},
          {"torch_dtype", "bfloat16"},
          {"vocab_size", 262144}};
}

// config.json of Gemma 3 4B, in part.
Json Gemma3Multimodal() {
  return {{"architectures", Json::array({"Gemma3ForConditionalGeneration"})},
          {"eos_token_id", {1, 106}},
          {"image_token_index", 262144},
          {"model_type", "gemma3"},
          {"text_config",
           {{"hidden_size", 2560},
            {"intermediate_size", 10240},
            {"model_type", "gemma3_text"},
            {"num_hidden_layers", 34},
            {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
            {"sliding_window", 1024}}},
          {"torch_dtype", "bfloat16"},
          {"vision_config", {{"hidden_size", 1152}, {"num_hidden_layers", 27}}}};
}

TEST(GemmaTest, FirstHasItsPublishedNumbers) {
  const ModelConfig config = Parse(Gemma2B());
  EXPECT_EQ(config.Parameters(), 2506172416);
  EXPECT_TRUE(config.tie_word_embeddings) << "the class's default";
  EXPECT_TRUE(config.norm_adds_one && config.scaled_embeddings);
  EXPECT_FALSE(config.output_norms);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_FLOAT_EQ(config.attention_scale(), 1.0f / 16);
  const LayerWeights layer = LayerWeightsOf(config, 0);
  EXPECT_TRUE(layer.input_norm.adds_one && layer.post_attention_norm.adds_one);
  EXPECT_FALSE(layer.q.adds_one);
  EXPECT_TRUE(FinalNormWeight(config).adds_one);
}

TEST(GemmaTest, SecondHasItsPublishedNumbers) {
  const ModelConfig config = Parse(Gemma2());
  EXPECT_EQ(config.Parameters(), 2614341888);
  EXPECT_EQ(config.score_softcap, 50);
  EXPECT_EQ(config.logit_softcap, 30);
  EXPECT_FLOAT_EQ(config.attention_scale(), 1 / std::sqrt(224.0f));
  EXPECT_EQ(config.window(0), 4096);
  EXPECT_EQ(config.window(1), 0);
  EXPECT_EQ(config.sliding_rope_theta, 0);
  const LayerWeights layer = LayerWeightsOf(config, 3);
  EXPECT_EQ(layer.attention_output_norm->name, "model.layers.3.post_attention_layernorm.weight");
  EXPECT_EQ(layer.post_attention_norm.name, "model.layers.3.pre_feedforward_layernorm.weight");
  EXPECT_EQ(layer.feed_forward_output_norm->name,
            "model.layers.3.post_feedforward_layernorm.weight");
  Json json = Gemma2();
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping",
                          "query_pre_attn_scalar", "sliding_window"}) {
    json.erase(key);
  }
  const ModelConfig by_class = Parse(json);
  EXPECT_EQ(by_class.score_softcap, 50);
  EXPECT_EQ(by_class.logit_softcap, 30);
  EXPECT_EQ(by_class.query_scalar, 256);
  EXPECT_EQ(by_class.sliding_window, 4096);
  json["attn_logit_softcapping"] = json["final_logit_softcapping"] = nullptr;
  EXPECT_EQ(Parse(json).score_softcap, 0);
  EXPECT_EQ(Parse(json).logit_softcap, 0);
}

TEST(GemmaTest, ThirdHasItsPublishedNumbers) {
  const ModelConfig config = Parse(Gemma3());
  EXPECT_EQ(config.Parameters(), 999885952);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_EQ(config.score_softcap, 0);
  for (int layer = 0; layer < 26; ++layer) EXPECT_EQ(config.slides(layer), layer % 6 != 5);
  EXPECT_EQ(config.window(4), 512);
  EXPECT_EQ(config.window(5), 0);
  EXPECT_EQ(config.rope_theta, 1000000);
  EXPECT_EQ(config.sliding_rope_theta, 10000);
}

// As transformers from 5 on writes it.
TEST(GemmaTest, LayersAndTheirRopesMayBeListed) {
  Json json = Gemma3();
  for (const char* key :
       {"rope_theta", "rope_scaling", "rope_local_base_freq", "sliding_window_pattern"}) {
    json.erase(key);
  }
  EXPECT_EQ(Parse(json).rope_theta, 1000000) << "the class's default";
  json["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}};
  std::vector<std::string> types(26, "sliding_attention");
  types[1] = "full_attention";
  json["layer_types"] = types;
  const ModelConfig config = Parse(json);
  EXPECT_EQ(config.rope_theta, 5e5);
  EXPECT_EQ(config.rope_scaling->factor, 8);
  EXPECT_EQ(config.sliding_rope_theta, 2e4);
  EXPECT_EQ(config.window(1), 0);
  EXPECT_EQ(config.window(5), 512);
}

TEST(GemmaTest, TextOfAMultimodalModel) {
  const ModelConfig config = Parse(Gemma3Multimodal());
  EXPECT_EQ(config.Parameters(), 3880263168) << "all but the 420 M of the vision tower";
  EXPECT_EQ(config.num_attention_heads, 8);
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.vocab_size, 262208);
  EXPECT_EQ(config.max_position_embeddings, 131072) << "which is the stretched context";
  EXPECT_EQ(config.rope_scaling->factor, 8);
  EXPECT_EQ(config.torch_dtype, "bfloat16");
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{1, 106}));
  EXPECT_EQ(LayerWeightsOf(config, 0).q.name,
            "language_model.model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(HeadWeight(config).name, "language_model.model.embed_tokens.weight");
  ExpectRefused(
      Gemma3Multimodal(),
      {{"text_config", nullptr, "\"text_config\" is missing"},
       {"text_config", 1, "\"text_config\" must be an object"},
       {"text_config", {{"hidden_size", 0}}, "\"text_config.hidden_size\" must be between 1"}});
}

TEST(GemmaTest, WhatDecidesTheMathematicsIsInTheFingerprint) {
  ExpectOtherFingerprints(Gemma2(),
                          {{"attn_logit_softcapping", 40.0},
                           {"final_logit_softcapping", nullptr},
                           {"query_pre_attn_scalar", 256},
                           {"sliding_window", 2048},
                           {"layer_types", std::vector<std::string>(26, "full_attention")}});
  ExpectOtherFingerprints(Gemma3(), {{"rope_local_base_freq", 20000},
                                     {"sliding_window_pattern", 5},
                                     {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}});
}

TEST(GemmaTest, FirstAndSecondRefuseByName) {
  ExpectRefused(Gemma2B(),
                {{"sliding_window", 512, "\"sliding_window\" is not supported"},
                 {"hidden_act", "relu", "\"hidden_act\" is \"relu\"; supported is"},
                 {"final_logit_softcapping", 30.0, "\"final_logit_softcapping\" would"}});
  ExpectRefused(
      Gemma2(),
      {{"attn_logit_softcapping", 0, "\"attn_logit_softcapping\" must be between 1e-06 and"},
       {"attn_logit_softcapping", -50, "\"attn_logit_softcapping\" must be between 1e-06 and"},
       {"attn_logit_softcapping", "50", "\"attn_logit_softcapping\" must be a number, got \"50\""},
       {"final_logit_softcapping", 0.0, "\"final_logit_softcapping\" must be between 1e-06 and"},
       {"final_logit_softcapping", -1, "\"final_logit_softcapping\" must be between 1e-06 and"},
       {"query_pre_attn_scalar", 0, "\"query_pre_attn_scalar\" must be between 1e-06 and"},
       {"query_pre_attn_scalar", -256, "\"query_pre_attn_scalar\" must be between 1e-06 and"},
       {"hidden_activation", "gelu", "\"hidden_activation\" is \"gelu\"; supported is"},
       {"hidden_activation", "silu", "supported is \"gelu_pytorch_tanh\""},
       {"use_bidirectional_attention", true, "\"use_bidirectional_attention\" is not supported"},
       {"sliding_window", 0, "\"sliding_window\" must be between 1"},
       {"partial_rotary_factor", 0.5, "\"partial_rotary_factor\" would change"},
       {"layer_types", {"full_attention"}, "\"layer_types\" must list \"num_hidden_layers\" (26)"},
       {"layer_types", 2, "\"layer_types\" must list \"num_hidden_layers\" (26) types"},
       {"layer_types", std::vector<std::string>(26, "linear_attention"),
        "\"layer_types\" has \"linear_attention\"; supported is \"full_attention\" or \"sliding"}});
  // No number of JSON's, but of Python's.
  std::string text = Gemma2().dump();
  const std::string value = "\"attn_logit_softcapping\":";
  text.replace(text.find(value) + value.size(), 4, "NaN");
  EXPECT_FALSE(ParseModelConfig(text, "config.json").ok());
}

TEST(GemmaTest, ThirdRefusesByName) {
  const auto ropes = [](const Json& full, const Json& sliding) {
    return Json{{"full_attention", full}, {"sliding_attention", sliding}};
  };
  const Json plain = {{"rope_type", "default"}};
  ExpectRefused(
      Gemma3(),
      {{"attn_logit_softcapping", 50.0, "\"attn_logit_softcapping\" would change"},
       {"final_logit_softcapping", -30.0, "\"final_logit_softcapping\" must be between"},
       {"rope_local_base_freq", 0, "\"rope_local_base_freq\" must be between 1 and"},
       {"rope_local_base_freq", -1e4, "\"rope_local_base_freq\" must be between 1 and"},
       {"sliding_window_pattern", 0, "\"sliding_window_pattern\" must be between 1 and"},
       {"rope_scaling",
        {{"rope_type", "linear"}, {"factor", 0}},
        "\"rope_scaling.factor\" must be"},
       {"rope_parameters", 1, "\"rope_parameters\" must be an object"},
       {"rope_parameters",
        {{"rope_type", "default"}},
        "\"rope_parameters.full_attention\" is miss"},
       {"rope_parameters", ropes({{"rope_type", "spiral"}}, plain),
        "\"rope_parameters.full_attention.rope_type\" is \"spiral\""},
       {"rope_parameters", ropes(plain, {{"rope_type", "linear"}, {"factor", 2.0}}),
        "\"rope_parameters.sliding_attention.rope_type\" is \"linear\"; supported is \"default\""},
       {"rope_parameters", ropes(plain, {{"rope_theta", 0}}),
        "\"rope_parameters.sliding_attention.rope_theta\" must be between 1"},
       {"rope_parameters", ropes(plain, 7), "\"rope_parameters.sliding_attention\" must be an obj"},
       {"model_type", "gemma3", "\"model_type\" is \"gemma3\", but Gemma3ForCausalLM has"}});
}

}  // namespace
}  // namespace baton
