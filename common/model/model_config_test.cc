#include "common/model/model_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::json;

// The keys that every family shares, as Hugging Face writes them.
Json Base(const char* architecture, const char* type) {
  return {{"architectures", Json::array({architecture})},
          {"model_type", type},
          {"hidden_size", 1024},
          {"intermediate_size", 3072},
          {"num_hidden_layers", 28},
          {"num_attention_heads", 16},
          {"num_key_value_heads", 8},
          {"vocab_size", 151936},
          {"max_position_embeddings", 40960},
          {"rms_norm_eps", 1e-6},
          {"hidden_act", "silu"},
          {"attention_dropout", 0.0},
          {"initializer_range", 0.02},
          {"rope_scaling", nullptr},
          {"sliding_window", nullptr},
          {"transformers_version", "4.51.0"},
          {"use_cache", true}};
}

ModelConfig Parse(const Json& json) {
  auto config = ParseModelConfig(json.dump(), "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

TEST(ModelConfigTest, ReadsQwen3) {
  Json json = Base("Qwen3ForCausalLM", "qwen3");
  json["head_dim"] = 128;
  json["rope_theta"] = 1000000;
  json["tie_word_embeddings"] = true;
  json["attention_bias"] = false;
  json["use_sliding_window"] = false;
  json["eos_token_id"] = 151645;
  const ModelConfig config = Parse(json);
  EXPECT_EQ(config.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(config.query_size(), 2048);
  EXPECT_EQ(config.kv_size(), 1024);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{151645});
  // Qwen3-0.6B as published: 0.6B parameters, 0.44B without the embeddings.
  EXPECT_EQ(config.Parameters(), 596049920);
}

Json Qwen3Moe(int layers, int hidden, int heads, int inner) {
  Json json = Base("Qwen3MoeForCausalLM", "qwen3_moe");
  json["num_hidden_layers"] = layers;
  json["hidden_size"] = hidden;
  json["num_attention_heads"] = heads;
  json["num_key_value_heads"] = 4;
  json["head_dim"] = 128;
  json["moe_intermediate_size"] = inner;
  json["num_experts"] = 128;
  json["num_experts_per_tok"] = 8;
  json["norm_topk_prob"] = true;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
  json["router_aux_loss_coef"] = 0.001;
  json["output_router_logits"] = false;
  return json;
}

TEST(ModelConfigTest, ReadsQwen3WithExperts) {
  // As published: 30.5B parameters, of which 3.3B are used; 235B and 22B.
  const ModelConfig small = Parse(Qwen3Moe(48, 2048, 32, 768));
  EXPECT_EQ(small.Parameters(), 30532122624);
  EXPECT_NEAR(static_cast<double>(small.ActiveParameters()), 3.3e9, 0.1e9);
  EXPECT_TRUE(small.qk_norm);
  EXPECT_TRUE(small.experts.normalise);
  EXPECT_EQ(small.SparseLayers(0, 48), 48);
  const ModelConfig large = Parse(Qwen3Moe(94, 4096, 64, 1536));
  EXPECT_EQ(large.Parameters(), 235093634560);
  EXPECT_NEAR(static_cast<double>(large.ActiveParameters()), 22e9, 0.5e9);
}

TEST(ModelConfigTest, SparseLayersFollowTheStepAndTheList) {
  Json json = Qwen3Moe(6, 64, 4, 32);
  json["decoder_sparse_step"] = 2;
  json["mlp_only_layers"] = {3};
  json.erase("num_experts");
  json.erase("norm_topk_prob");
  json["num_local_experts"] = 16;  // As transformers 5 writes it.
  const ModelConfig config = Parse(json);
  std::vector<bool> sparse;
  sparse.reserve(6);
  for (int layer = 0; layer < 6; ++layer) sparse.push_back(config.sparse(layer));
  EXPECT_EQ(sparse, (std::vector<bool>{false, true, false, false, false, true}));
  EXPECT_EQ(config.SparseLayers(1, 4), 1);
  EXPECT_EQ(config.experts.count, 16);
  EXPECT_FALSE(config.experts.normalise) << "the class's default";
}

TEST(ModelConfigTest, ReadsMixtralAndMistral) {
  Json json = Base("MixtralForCausalLM", "mixtral");
  json["hidden_size"] = 4096;
  json["intermediate_size"] = 14336;
  json["num_hidden_layers"] = 32;
  json["num_attention_heads"] = 32;
  json["vocab_size"] = 32000;
  json["num_local_experts"] = 8;
  json["num_experts_per_tok"] = 2;
  json["rope_theta"] = 1e6;
  const ModelConfig mixtral = Parse(json);
  EXPECT_EQ(mixtral.Parameters(), 46702792704);  // 8x7B as published.
  EXPECT_EQ(mixtral.experts.inner, 14336);
  EXPECT_TRUE(mixtral.experts.normalise);
  json = Base("MistralForCausalLM", "mistral");
  EXPECT_EQ(Parse(json).sliding_window, 0) << "null is no window";
  json["sliding_window"] = 4096;
  EXPECT_EQ(Parse(json).sliding_window, 4096);
  json["sliding_window"] = 40960;
  EXPECT_EQ(Parse(json).sliding_window, 0) << "as long as the context";
  json.erase("sliding_window");
  EXPECT_EQ(Parse(json).sliding_window, 4096) << "the class's default";
}

TEST(ModelConfigTest, BiasesAreWhereConfigSaysSo) {
  Json json = Base("LlamaForCausalLM", "llama");
  json["attention_bias"] = true;
  json["mlp_bias"] = true;
  const ModelConfig config = Parse(json);
  EXPECT_TRUE(config.qkv_bias && config.o_bias && config.mlp_bias);
  json = Base("Qwen3ForCausalLM", "qwen3");
  json["attention_bias"] = true;
  EXPECT_TRUE(Parse(json).o_bias);
}

TEST(ModelConfigTest, HeadDimFollowsTheFamilysDefault) {
  EXPECT_EQ(Parse(Base("LlamaForCausalLM", "llama")).head_dim, 64);
  EXPECT_EQ(Parse(Base("Qwen2ForCausalLM", "qwen2")).head_dim, 64);
  EXPECT_EQ(Parse(Base("Qwen3ForCausalLM", "qwen3")).head_dim, 128);
}

TEST(ModelConfigTest, Qwen2HasBiasesAndMayCarryAnUnusedWindow) {
  Json json = Base("Qwen2ForCausalLM", "qwen2");
  json["sliding_window"] = 32768;
  json["use_sliding_window"] = false;
  const ModelConfig config = Parse(json);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.qk_norm);
}

TEST(ModelConfigTest, ReadsLlama3ScalingInBothForms) {
  const Json scaling = {{"rope_type", "llama3"},
                        {"factor", 32.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192}};
  Json older = Base("LlamaForCausalLM", "llama");
  older["rope_theta"] = 500000.0;
  older["rope_scaling"] = scaling;
  Json newer = Base("LlamaForCausalLM", "llama");
  newer["rope_parameters"] = scaling;
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  for (const Json& json : {older, newer}) {
    const ModelConfig config = Parse(json);
    EXPECT_EQ(config.rope_theta, 500000.0);
    ASSERT_TRUE(config.rope_scaling.has_value());
    EXPECT_EQ(config.rope_scaling->factor, 32.0);
    EXPECT_EQ(config.rope_scaling->original_max_position_embeddings, 8192);
  }
}

TEST(ModelConfigTest, DefaultRopeNeedsNoScaling) {
  Json json = Base("LlamaForCausalLM", "llama");
  json["rope_scaling"] = {{"type", "default"}};
  EXPECT_FALSE(Parse(json).rope_scaling.has_value());
  json.erase("rope_scaling");
  json["rope_parameters"] = {{"rope_theta", 5000.0}};
  EXPECT_EQ(Parse(json).rope_theta, 5000.0);
}

TEST(ModelConfigTest, LayerRangesAreWithinTheModel) {
  const ModelConfig config = Parse(Base("LlamaForCausalLM", "llama"));
  EXPECT_TRUE(ValidateLayerRange(config, 0, 28).ok());
  EXPECT_TRUE(ValidateLayerRange(config, 27, 28).ok());
  EXPECT_FALSE(ValidateLayerRange(config, -1, 3).ok());
  EXPECT_FALSE(ValidateLayerRange(config, 3, 3).ok());
  EXPECT_FALSE(ValidateLayerRange(config, 3, 29).ok());
}

TEST(ModelConfigTest, ReadsEveryRopeKind) {
  Json json = Base("LlamaForCausalLM", "llama");
  const auto parse = [&](const Json& scaling) {
    json["rope_scaling"] = scaling;
    return Parse(json);
  };
  ModelConfig config = parse({{"rope_type", "linear"}, {"factor", 4.0}});
  EXPECT_EQ(config.rope_scaling->kind, RopeKind::kLinear);
  EXPECT_EQ(config.max_position_embeddings, 4 * 40960);

  // Qwen's: the file's own length counts unless the stretched one is longer.
  const Json yarn = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  config = parse(yarn);
  EXPECT_EQ(config.rope_scaling->kind, RopeKind::kYarn);
  EXPECT_EQ(config.rope_scaling->original_max_position_embeddings, 32768);
  EXPECT_EQ(config.max_position_embeddings, 131072);
  EXPECT_NEAR(config.rope_scaling->magnitude, 0.1 * std::log(4.0) + 1, 1e-12);
  // DeepSeek's names for the magnitude: equal ones are none.
  Json mscale = yarn;
  mscale["mscale"] = mscale["mscale_all_dim"] = 1.0;
  EXPECT_EQ(parse(mscale).rope_scaling->magnitude, 1.0);
  mscale["attention_factor"] = 1.5;
  EXPECT_EQ(parse(mscale).rope_scaling->magnitude, 1.5);
  // Without a factor the lengths say it.
  config = parse({{"type", "yarn"}, {"original_max_position_embeddings", 10240}});
  EXPECT_EQ(config.rope_scaling->factor, 4.0);
  EXPECT_EQ(config.max_position_embeddings, 40960);

  // Frequencies that depend on the text's length: up to where they do.
  config = parse({{"rope_type", "dynamic"}, {"factor", 2.0}});
  EXPECT_FALSE(config.rope_scaling.has_value());
  EXPECT_EQ(config.max_position_embeddings, 40960);

  json.erase("rope_scaling");
  json["rope_parameters"] = yarn;
  json["rope_parameters"]["rope_theta"] = 5e6;
  config = Parse(json);
  EXPECT_EQ(config.rope_theta, 5e6);
  EXPECT_EQ(config.rope_scaling->factor, 4.0);
}

TEST(ModelConfigTest, TakesTheClassesDefaults) {
  const auto without = [](Json json) {
    for (const char* key : {"num_key_value_heads", "rms_norm_eps", "max_position_embeddings"}) {
      json.erase(key);
    }
    return Parse(json);
  };
  const ModelConfig llama = without(Base("LlamaForCausalLM", "llama"));
  EXPECT_EQ(llama.num_key_value_heads, 16);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6);
  EXPECT_EQ(llama.max_position_embeddings, 2048);
  EXPECT_EQ(llama.rope_theta, 10000);
  EXPECT_EQ(llama.head_dim, 64);
  EXPECT_FALSE(llama.tie_word_embeddings);
  EXPECT_EQ(without(Base("Qwen3ForCausalLM", "qwen3")).max_position_embeddings, 32768);
  EXPECT_EQ(without(Base("Qwen2ForCausalLM", "qwen2")).num_key_value_heads, 16) << "32 can't be";
  Json large = Base("Qwen2ForCausalLM", "qwen2");
  large["num_attention_heads"] = 64;
  EXPECT_EQ(without(large).num_key_value_heads, 32);
}

}  // namespace
}  // namespace baton
