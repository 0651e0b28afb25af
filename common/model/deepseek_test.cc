// DeepSeek's configurations: published numbers, what is refused by which name, and the parts that
// ranks hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "common/model/fingerprint.h"
#include "common/model/make_model.h"
#include "common/model/model_config.h"
#include "common/model/model_shard.h"
#include "common/model/testing/model_directory.h"
#include "common/model/weight_names.h"

namespace baton {
namespace {

using model_testing::Json;
using model_testing::ModelDirectory;
using ::testing::HasSubstr;

// config.json of DeepSeek-V3.1.
Json V31() {
  return {{"architectures", {"DeepseekV3ForCausalLM"}},
          {"attention_bias", false},
          {"bos_token_id", 0},
          {"eos_token_id", 1},
          {"ep_size", 1},
          {"first_k_dense_replace", 3},
          {"hidden_act", "silu"},
          {"hidden_size", 7168},
          {"intermediate_size", 18432},
          {"kv_lora_rank", 512},
          {"max_position_embeddings", 163840},
          {"model_type", "deepseek_v3"},
          {"moe_intermediate_size", 2048},
          {"moe_layer_freq", 1},
          {"n_group", 8},
          {"n_routed_experts", 256},
          {"n_shared_experts", 1},
          {"norm_topk_prob", true},
          {"num_attention_heads", 128},
          {"num_experts_per_tok", 8},
          {"num_hidden_layers", 61},
          {"num_key_value_heads", 128},
          {"num_nextn_predict_layers", 1},
          {"q_lora_rank", 1536},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"quantization_config",
           {{"activation_scheme", "dynamic"},
            {"fmt", "e4m3"},
            {"quant_method", "fp8"},
            {"scale_fmt", "ue8m0"},
            {"weight_block_size", {128, 128}}}},
          {"rms_norm_eps", 1e-6},
          {"rope_scaling",
           {{"beta_fast", 32},
            {"beta_slow", 1},
            {"factor", 40},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0},
            {"original_max_position_embeddings", 4096},
            {"type", "yarn"}}},
          {"rope_theta", 10000},
          {"routed_scaling_factor", 2.5},
          {"scoring_func", "sigmoid"},
          {"tie_word_embeddings", false},
          {"topk_group", 4},
          {"topk_method", "noaux_tc"},
          {"torch_dtype", "bfloat16"},
          {"v_head_dim", 128},
          {"vocab_size", 129280}};
}

Json V2Lite() {
  Json json = V31();
  json["architectures"] = {"DeepseekV2ForCausalLM"};
  json["model_type"] = "deepseek_v2";
  json["hidden_size"] = 2048;
  json["intermediate_size"] = 10944;
  json["moe_intermediate_size"] = 1408;
  json["n_routed_experts"] = 64;
  json["n_shared_experts"] = 2;
  json["num_attention_heads"] = json["num_key_value_heads"] = 16;
  json["num_experts_per_tok"] = 6;
  json["num_hidden_layers"] = 27;
  json["first_k_dense_replace"] = 1;
  json["n_group"] = json["topk_group"] = 1;
  json["q_lora_rank"] = nullptr;
  json["norm_topk_prob"] = false;
  json["routed_scaling_factor"] = 1.0;
  json["scoring_func"] = "softmax";
  json["topk_method"] = "greedy";
  json["rope_scaling"]["mscale"] = json["rope_scaling"]["mscale_all_dim"] = 0.707;
  json["vocab_size"] = 102400;
  json.erase("num_nextn_predict_layers");
  json.erase("quantization_config");
  return json;
}

ModelConfig Parse(const Json& json) {
  auto config = ParseModelConfig(json.dump(), "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

TEST(DeepSeekTest, V3HasItsPublishedNumbers) {
  const ModelConfig config = Parse(V31());
  EXPECT_EQ(config.Parameters(), 671026419200);
  EXPECT_NEAR(static_cast<double>(config.ActiveParameters()), 37.5e9, 0.5e9);
  EXPECT_EQ(config.SparseLayers(0, 61), 58);
  EXPECT_FALSE(config.sparse(2));
  EXPECT_EQ(config.mtp_layers, 1);
  // Eight experts and a shared one are as wide as a dense layer's network; a router is beside them.
  const std::vector<double> work = config.LayerWork();
  ASSERT_EQ(work.size(), 61u);
  EXPECT_NEAR(work[3] / work[0], 1, 0.01);
  const KvLayout kv = config.kv(/*page_size=*/1, ElementType::kBFloat16);
  EXPECT_EQ(kv.BandBytes({0, 61}), 70272u);
  EXPECT_EQ(kv.kv_heads, 1);
  EXPECT_EQ(kv.planes, 1);
  EXPECT_EQ(kv.head_dim, 576);
  EXPECT_EQ(config.max_position_embeddings, 163840);
  // 1 / sqrt(192), times the square of 1 + 0.1 ln 40; cosines and sines stay as they are.
  EXPECT_FLOAT_EQ(config.attention_scale(), 0.13523377f);
  EXPECT_EQ(config.rope_scaling->magnitude, 1);
}

TEST(DeepSeekTest, V2LiteHasItsPublishedNumbers) {
  const ModelConfig config = Parse(V2Lite());
  EXPECT_EQ(config.Parameters(), 15706484224);
  EXPECT_EQ(config.kv(1, ElementType::kBFloat16).BandBytes({0, 27}), 31104u);
  EXPECT_EQ(config.experts.shared_inner, 2816);
  EXPECT_EQ(config.experts.groups, 1);
  EXPECT_FALSE(config.experts.bias);
}

TEST(DeepSeekTest, KimiK2IsOfTheArchitecture) {
  Json json = V31();
  json["model_type"] = "kimi_k2";
  json["num_attention_heads"] = json["num_key_value_heads"] = 64;
  json["n_routed_experts"] = 384;
  json["n_group"] = json["topk_group"] = 1;
  json["first_k_dense_replace"] = 1;
  json["vocab_size"] = 163840;
  EXPECT_NEAR(static_cast<double>(Parse(json).Parameters()), 1.027e12, 0.002e12);
}

TEST(DeepSeekTest, SparseLayersFollowTheirFrequency) {
  Json json = V31();
  json["num_hidden_layers"] = 8;
  json["moe_layer_freq"] = 2;
  const ModelConfig config = Parse(json);
  std::vector<int> sparse;
  for (int layer = 0; layer < 8; ++layer) {
    if (config.sparse(layer)) sparse.push_back(layer);
  }
  EXPECT_EQ(sparse, (std::vector<int>{4, 6}));
}

// Two processes that differ in any of this must not pass KV to one another.
TEST(DeepSeekTest, WhatDecidesTheMathematicsIsInTheFingerprint) {
  const uint64_t whole = ConfigFingerprint(Parse(V31()));
  const std::vector<std::function<void(Json&)>> changes = {
      [](Json& c) { c["kv_lora_rank"] = 448; },
      [](Json& c) { c["q_lora_rank"] = nullptr; },
      [](Json& c) { c["qk_nope_head_dim"] = 64; },
      [](Json& c) { c["v_head_dim"] = 64; },
      [](Json& c) { c["n_group"] = 4; },
      [](Json& c) { c["topk_group"] = 3; },
      [](Json& c) { c["routed_scaling_factor"] = 2.4; },
      [](Json& c) { c["n_shared_experts"] = 2; },
      [](Json& c) { c["first_k_dense_replace"] = 2; },
      [](Json& c) { c["norm_topk_prob"] = false; },
      [](Json& c) { c["rope_interleave"] = false; },
      [](Json& c) { c["rope_scaling"]["mscale"] = c["rope_scaling"]["mscale_all_dim"] = 0.9; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Json changed = V31();
    changes[i](changed);
    EXPECT_NE(ConfigFingerprint(Parse(changed)), whole) << "change " << i;
  }
}

struct Refusal {
  const char* key;
  Json value;
  const char* message;
};

TEST(DeepSeekTest, RefusesByName) {
  const std::vector<Refusal> refusals = {
      {"n_group", 7, "\"n_group\" is 7, which does not divide \"n_routed_experts\" (256)"},
      {"n_group", 256, "\"n_group\" is 256, which leaves each group one expert"},
      {"n_group", 0, "\"n_group\" must be between 1 and"},
      {"topk_group", 9, "\"topk_group\" is 9, more than \"n_group\" (8)"},
      {"num_experts_per_tok", 257, "\"num_experts_per_tok\" is 257, more than"},
      {"num_experts_per_tok", 129, "is 129, more than the 128 experts of \"topk_group\" (4)"},
      {"kv_lora_rank", 0, "\"kv_lora_rank\" must be between 1 and"},
      {"kv_lora_rank", 1 << 20, "\"kv_lora_rank\" must be between 1 and"},
      {"q_lora_rank", 0, "\"q_lora_rank\" must be between 1 and"},
      {"qk_rope_head_dim", 63, "\"qk_rope_head_dim\" must be even, is 63"},
      {"qk_nope_head_dim", 0, "\"qk_nope_head_dim\" must be between 1 and"},
      {"v_head_dim", 1 << 12, "\"v_head_dim\" must be between 1 and"},
      {"num_key_value_heads", 8, "\"num_key_value_heads\" is 8, but latent attention"},
      {"topk_method", "lottery", "\"topk_method\" is \"lottery\"; supported is \"noaux_tc\""},
      {"scoring_func", "softmax", "\"scoring_func\" is \"softmax\"; supported is \"sigmoid\""},
      {"routed_scaling_factor", -1, "\"routed_scaling_factor\" must be between"},
      {"first_k_dense_replace", 62, "\"first_k_dense_replace\" must be between 0 and 61"},
      {"moe_layer_freq", 0, "\"moe_layer_freq\" must be between 1 and 61"},
      {"n_shared_experts", 1 << 20, "\"n_shared_experts\" must be between 0 and"},
      {"attention_bias", true, "\"attention_bias\""},
      {"moe_intermediate_size", 1 << 21, "\"moe_intermediate_size\" must be between 1 and"},
      {"n_routed_experts", 1 << 20, "\"n_routed_experts\" must be between 1 and"},
      {"num_nextn_predict_layers", -1, "\"num_nextn_predict_layers\" must be between"},
  };
  for (const Refusal& refusal : refusals) {
    Json json = V31();
    json[refusal.key] = refusal.value;
    EXPECT_THAT(std::string(ParseModelConfig(json.dump(), "config.json").status().message()),
                HasSubstr(refusal.message));
  }
  for (const Refusal& refusal : {Refusal{"scoring_func", "sigmoid", "supported is \"softmax\""},
                                 Refusal{"topk_method", "noaux_tc", "\"topk_method\""},
                                 Refusal{"norm_topk_prob", true, "\"norm_topk_prob\""}}) {
    Json json = V2Lite();
    json[refusal.key] = refusal.value;
    EXPECT_THAT(std::string(ParseModelConfig(json.dump(), "config.json").status().message()),
                HasSubstr(refusal.message));
  }
  Json json = V31();
  json["n_shared_experts"] = 64;
  json["moe_intermediate_size"] = 1 << 20;
  EXPECT_THAT(std::string(ParseModelConfig(json.dump(), "config.json").status().message()),
              HasSubstr("\"n_shared_experts\" is 64, which makes 67108864 columns"));
  json = V31();
  json.erase("q_lora_rank");
  EXPECT_THAT(std::string(ParseModelConfig(json.dump(), "config.json").status().message()),
              HasSubstr("\"q_lora_rank\" is missing"));
}

TEST(DeepSeekTest, TensorsThatAreMissingOrOfAnotherShapeAreNamed) {
  const auto refusal = [](const std::function<void(Json&)>& edit) {
    const ModelDirectory model{::testing::TempDir() + "/deepseek"};
    EXPECT_TRUE(MakeRandomModel(
                    model.path,
                    {.architecture = "DeepseekV3ForCausalLM", .num_hidden_layers = 2, .fp8 = true})
                    .ok());
    model.EditHeader(edit);
    auto reader = WeightReader::Open(model.path);
    EXPECT_TRUE(reader.ok()) << reader.status();
    const ModelConfig config = *LoadModelConfig(model.path);
    return std::string(FingerprintStage(*reader, config, 0, 2).status().message());
  };
  const std::string layer = "model.layers.1.";
  EXPECT_EQ(refusal([](Json&) {}), "");
  for (const char* name : {"self_attn.kv_a_proj_with_mqa.weight", "self_attn.kv_b_proj.weight",
                           "self_attn.q_a_layernorm.weight", "self_attn.kv_b_proj.weight_scale_inv",
                           "mlp.gate.e_score_correction_bias", "mlp.shared_experts.up_proj.weight",
                           "mlp.experts.3.down_proj.weight"}) {
    EXPECT_THAT(refusal([&](Json& header) { header.erase(layer + name); }),
                HasSubstr(layer + name));
  }
  EXPECT_THAT(
      refusal([&](Json& header) {
        header[layer + "self_attn.kv_b_proj.weight_scale_inv"]["shape"] = {1, 1, 1};
      }),
      HasSubstr("kv_b_proj.weight_scale_inv has shape [1, 1, 1], but config.json makes it [1, 1]"));
}

TEST(DeepSeekTest, RanksHaveTheirHeadsAndColumnsAndAllOfTheRows) {
  const ModelConfig config = Parse(V31());
  for (int rank = 0; rank < 8; ++rank) {
    const ModelShard shard = *ShardModel(config, {rank, 8});
    EXPECT_EQ(shard.kv_heads, (IndexRange{0, 1}));
    EXPECT_EQ(shard.sizes.kv(1, ElementType::kBFloat16).BandBytes({0, 61}), 70272u);
    const LayerWeights weights = LayerWeightsOf(config, shard, 3);
    ASSERT_TRUE(weights.latent && weights.shared);
    EXPECT_EQ(weights.latent->q.rows, (IndexRange{rank * 16 * 192, (rank + 1) * 16 * 192}));
    EXPECT_EQ(weights.latent->kv_b.rows, (IndexRange{rank * 16 * 256, (rank + 1) * 16 * 256}));
    EXPECT_EQ(weights.latent->kv_a.ElementCount(), 576 * 7168) << "every rank's";
    EXPECT_EQ(weights.o.columns, (IndexRange{rank * 16 * 128, (rank + 1) * 16 * 128}));
    EXPECT_EQ(weights.shared->down.columns, (IndexRange{rank * 256, (rank + 1) * 256}));
    EXPECT_EQ(weights.experts.size(), 32u);
  }
  EXPECT_THAT(std::string(ShardModel(config, {0, 3}).status().message()),
              HasSubstr("128 attention heads"));
}

}  // namespace
}  // namespace baton
