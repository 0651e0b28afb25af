// Configurations of GLM-4, MiniMax-M2 and Phi-3: published numbers, what is refused by which name,
// and fingerprints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/model/fingerprint.h"
#include "common/model/model_config.h"
#include "common/model/model_shard.h"
#include "common/model/testing/config_checks.h"
#include "common/model/weight_names.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using testing::ExpectOtherFingerprints;
using testing::ExpectRefused;
using testing::Json;
using testing::Parse;

// config.json of GLM-4.5-Air.
Json Glm45Air() {
  return {{"architectures", Json::array({"Glm4MoeForCausalLM"})},
          {"attention_bias", true},
          {"attention_dropout", 0.0},
          {"pad_token_id", 151329},
          {"eos_token_id", {151329, 151336, 151338}},
          {"head_dim", 128},
          {"hidden_act", "silu"},
          {"hidden_size", 4096},
          {"partial_rotary_factor", 0.5},
          {"intermediate_size", 10944},
          {"max_position_embeddings", 131072},
          {"model_type", "glm4_moe"},
          {"moe_intermediate_size", 1408},
          {"norm_topk_prob", true},
          {"num_attention_heads", 96},
          {"n_group", 1},
          {"topk_group", 1},
          {"n_routed_experts", 128},
          {"n_shared_experts", 1},
          {"routed_scaling_factor", 1.0},
          {"num_experts_per_tok", 8},
          {"first_k_dense_replace", 1},
          {"num_hidden_layers", 46},
          {"num_key_value_heads", 8},
          {"num_nextn_predict_layers", 1},
          {"rms_norm_eps", 1e-5},
          {"rope_scaling", nullptr},
          {"rope_theta", 1000000},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"use_qk_norm", false},
          {"vocab_size", 151552}};
}

TEST(Glm4MoeTest, HasItsPublishedNumbers) {
  const ModelConfig air = Parse(Glm45Air());
  EXPECT_EQ(air.Parameters(), 106852245504 + int64_t{45} * 128) << "and biases of the router";
  EXPECT_NEAR(static_cast<double>(air.ActiveParameters()), 13e9, 1e9);
  EXPECT_EQ(air.rope_dim(), 64);
  EXPECT_TRUE(air.qkv_bias);
  EXPECT_FALSE(air.o_bias) << "the output projection has none";
  EXPECT_FALSE(air.qk_norm);
  EXPECT_EQ(air.mtp_layers, 1);
  EXPECT_FALSE(air.sparse(0));
  EXPECT_TRUE(air.sparse(1));
  EXPECT_TRUE(air.experts.bias && air.experts.score == ExpertScore::kSigmoid);
  Json json = Glm45Air();  // GLM-4.5 and 4.6.
  json["hidden_size"] = 5120;
  json["intermediate_size"] = 12288;
  json["moe_intermediate_size"] = 1536;
  json["n_routed_experts"] = 160;
  json["first_k_dense_replace"] = 3;
  json["num_hidden_layers"] = 92;
  json["routed_scaling_factor"] = 2.5;
  json["use_qk_norm"] = true;
  const ModelConfig large = Parse(json);
  EXPECT_NEAR(static_cast<double>(large.Parameters()), 353e9, 1e9);
  EXPECT_NEAR(static_cast<double>(large.ActiveParameters()), 32e9, 2e9);
  EXPECT_TRUE(large.qk_norm);
}

TEST(Glm4MoeTest, HalfOfAHeadIsTurnedWhereverConfigSaysSo) {
  Json json = Glm45Air();
  json.erase("partial_rotary_factor");
  EXPECT_EQ(Parse(json).rope_dim(), 64) << "the class's default";
  json.erase("rope_scaling");
  json["rope_parameters"] = {{"partial_rotary_factor", 0.25}, {"rope_type", "default"}};
  EXPECT_EQ(Parse(json).rope_dim(), 32);
  json["partial_rotary_factor"] = 0.25;
  EXPECT_EQ(Parse(json).rope_dim(), 32);
  json["rope_parameters"]["partial_rotary_factor"] = 1.0;
  json["partial_rotary_factor"] = 1.0;
  EXPECT_EQ(Parse(json).rope_dim(), 128);
}

TEST(Glm4MoeTest, WhatDecidesTheMathematicsIsInTheFingerprint) {
  ExpectOtherFingerprints(Glm45Air(), {{"partial_rotary_factor", 0.25},
                                       {"attention_bias", false},
                                       {"use_qk_norm", true},
                                       {"routed_scaling_factor", 2.5},
                                       {"norm_topk_prob", false},
                                       {"first_k_dense_replace", 2},
                                       {"n_shared_experts", 2}});
}

TEST(Glm4MoeTest, RefusesByName) {
  ExpectRefused(
      Glm45Air(),
      {{"partial_rotary_factor", 0, "\"partial_rotary_factor\" is 0, which turns 0 of the 128"},
       {"partial_rotary_factor", 0.51, "\"partial_rotary_factor\" is 0.51, which turns 65 of the"},
       {"partial_rotary_factor", 1.5, "\"partial_rotary_factor\" must be between 0 and 1"},
       {"rope_parameters",
        {{"partial_rotary_factor", 0.25}},
        "\"rope_parameters.partial_rotary_factor\" differs from another"},
       {"rope_parameters",
        {{"partial_rotary_factor", "half"}},
        "\"rope_parameters.partial_rotary_factor\" must be a number"},
       {"use_qk_norm", 1, "\"use_qk_norm\" must be true or false"},
       {"n_shared_experts", nullptr, "\"n_shared_experts\" is missing"},
       {"n_routed_experts", nullptr, "\"n_routed_experts\" is missing"},
       {"rms_norm_eps", nullptr, "\"rms_norm_eps\" is missing"},
       {"moe_layer_freq", 2, "\"moe_layer_freq\" is not supported for GLM-4"},
       {"sliding_window", 4096, "\"sliding_window\" is not supported for GLM-4"},
       {"scoring_func", "softmax", "\"scoring_func\" is \"softmax\"; supported is \"sigmoid\""},
       {"topk_method", "greedy", "\"topk_method\" is \"greedy\"; supported is \"noaux_tc\""},
       {"n_group", 7, "\"n_group\" is 7, which does not divide \"n_routed_experts\" (128)"},
       {"num_nextn_predict_layers", -1, "\"num_nextn_predict_layers\" must be between"},
       {"kv_lora_rank", 512, "\"kv_lora_rank\" would change the mathematics"}});
}

TEST(Glm4MoeTest, RanksHaveTheirHeadsAndBiases) {
  const ModelConfig config = Parse(Glm45Air());
  const ModelShard shard = *ShardModel(config, {1, 4});
  const LayerWeights weights = LayerWeightsOf(config, shard, 1);
  EXPECT_EQ(weights.q_bias->rows, (IndexRange{24 * 128, 48 * 128}));
  EXPECT_EQ(weights.k_bias->rows, (IndexRange{2 * 128, 4 * 128}));
  EXPECT_FALSE(weights.o_bias.has_value());
  EXPECT_EQ(weights.experts.size(), 32u);
  EXPECT_EQ(shard.sizes.rope_dim(), 64);
}

// config.json of MiniMax-M2.
Json M2() {
  return {{"architectures", Json::array({"MiniMaxM2ForCausalLM"})},
          {"attn_type_list", std::vector<int>(62, 1)},
          {"head_dim", 128},
          {"hidden_act", "silu"},
          {"hidden_size", 3072},
          {"intermediate_size", 1536},
          {"max_position_embeddings", 196608},
          {"model_type", "minimax_m2"},
          {"mtp_transformer_layers", 1},
          {"num_attention_heads", 48},
          {"num_experts_per_tok", 8},
          {"num_hidden_layers", 62},
          {"num_key_value_heads", 8},
          {"num_local_experts", 256},
          {"num_mtp_modules", 3},
          {"qk_norm_type", "per_layer"},
          {"quantization_config",
           {{"activation_scheme", "dynamic"},
            {"fmt", "float8_e4m3fn"},
            {"quant_method", "fp8"},
            {"weight_block_size", {128, 128}},
            {"modules_to_not_convert", {"gate", "e_score_correction_bias", "lm_head"}}}},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 5000000},
          {"rotary_dim", 64},
          {"scoring_func", "sigmoid"},
          {"shared_intermediate_size", 0},
          {"tie_word_embeddings", false},
          {"use_mtp", true},
          {"use_qk_norm", true},
          {"use_routing_bias", true},
          {"vocab_size", 200064}};
}

TEST(MiniMaxM2Test, HasItsPublishedNumbers) {
  const ModelConfig config = Parse(M2());
  EXPECT_NEAR(static_cast<double>(config.Parameters()), 228.7e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(config.ActiveParameters()), 10e9, 1.5e9);
  EXPECT_EQ(config.rope_dim(), 64);
  EXPECT_EQ(config.q_norm_size(), 48 * 128);
  EXPECT_EQ(config.k_norm_size(), 8 * 128);
  EXPECT_EQ(config.SparseLayers(0, 62), 62);
  EXPECT_EQ(config.experts.inner, 1536);
  EXPECT_EQ(config.experts.shared_inner, 0);
  EXPECT_EQ(config.mtp_layers, 3);
  EXPECT_TRUE(config.fp8);
  const LayerWeights layer = LayerWeightsOf(config, 5);
  EXPECT_EQ(layer.router_bias->name, "model.layers.5.block_sparse_moe.e_score_correction_bias");
  EXPECT_EQ(layer.experts[7].down.name, "model.layers.5.block_sparse_moe.experts.7.w2.weight");
  EXPECT_EQ(layer.experts[7].down.scale, layer.experts[7].down.name + "_scale_inv");
}

TEST(MiniMaxM2Test, WhatDecidesTheMathematicsIsInTheFingerprint) {
  ExpectOtherFingerprints(M2(), {{"rotary_dim", 32},
                                 {"use_routing_bias", false},
                                 {"num_experts_per_tok", 4},
                                 {"rope_theta", 10000}});
  ModelConfig config = Parse(M2());
  const uint64_t whole = ConfigFingerprint(config);
  config.qk_norm_whole = false;
  EXPECT_NE(ConfigFingerprint(config), whole);
}

TEST(MiniMaxM2Test, RefusesByName) {
  ExpectRefused(
      M2(),
      {{"rotary_dim", 129, "\"rotary_dim\" must be between 2 and 128"},
       {"rotary_dim", 63, "which turns 63 of the 128 elements of a head; they must be pairs"},
       {"partial_rotary_factor", 0.25,
        "\"rotary_dim\" is 64, but \"partial_rotary_factor\" makes it 32"},
       {"attn_type_list", {1, 0}, "\"attn_type_list\" has 0; supported is 1"},
       {"attn_type_list", 1, "\"attn_type_list\" must be a list"},
       {"use_qk_norm", false, "\"use_qk_norm\" must be true"},
       {"qk_norm_type", "per_head", "\"qk_norm_type\" is \"per_head\"; supported is \"per_layer\""},
       {"scoring_func", "softmax", "\"scoring_func\" is \"softmax\"; supported is \"sigmoid\""},
       {"shared_intermediate_size", 1024, "\"shared_intermediate_size\""},
       {"sliding_window", 4096, "\"sliding_window\" is not supported for MiniMax-M2"},
       {"routed_scaling_factor", 2.0, "\"routed_scaling_factor\""},
       {"layernorm_mlp_beta", 0.5, "\"layernorm_mlp_beta\""},
       {"num_experts", 128, "\"num_local_experts\" is 256, but \"num_experts\" is 128"},
       {"num_mtp_modules", -1, "\"num_mtp_modules\" must be between"},
       {"rope_theta", nullptr, "\"rope_theta\" is missing"},
       {"n_shared_experts", 1, "\"n_shared_experts\""}});
}

TEST(MiniMaxM2Test, RanksHaveTheirPartsOfTheNorms) {
  const ModelConfig config = Parse(M2());
  for (const auto& [size, rank, kv] :
       {std::tuple{4, 1, IndexRange{256, 512}}, {16, 5, IndexRange{256, 384}}}) {
    const ModelShard shard = *ShardModel(config, {rank, size});
    const LayerWeights weights = LayerWeightsOf(config, shard, 0);
    const int queries = 48 * 128 / size;
    EXPECT_EQ(weights.q_norm->rows, (IndexRange{rank * queries, (rank + 1) * queries}));
    EXPECT_EQ(weights.k_norm->rows, kv);
    EXPECT_EQ(shard.sizes.q_norm_size(), queries);
  }
}

// config.json of Phi-4-mini-instruct, with equal divisors.
Json Phi4Mini() {
  const std::vector<double> ones(48, 1);
  return {{"architectures", Json::array({"Phi3ForCausalLM"})},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"bos_token_id", 199999},
          {"embd_pdrop", 0.0},
          {"eos_token_id", 199999},
          {"full_attn_mod", 1},
          {"hidden_act", "silu"},
          {"hidden_size", 3072},
          {"intermediate_size", 8192},
          {"interpolate_factor", 1},
          {"lm_head_bias", false},
          {"max_position_embeddings", 131072},
          {"mlp_bias", false},
          {"model_type", "phi3"},
          {"num_attention_heads", 24},
          {"num_hidden_layers", 32},
          {"num_key_value_heads", 8},
          {"original_max_position_embeddings", 4096},
          {"partial_rotary_factor", 0.75},
          {"resid_pdrop", 0.0},
          {"rms_norm_eps", 1e-5},
          {"rope_scaling", {{"long_factor", ones}, {"short_factor", ones}, {"type", "longrope"}}},
          {"rope_theta", 10000.0},
          {"sliding_window", 262144},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"},
          {"vocab_size", 200064}};
}

TEST(Phi3Test, HasItsPublishedNumbers) {
  const ModelConfig mini = Parse(Phi4Mini());
  EXPECT_EQ(mini.Parameters(), 3836021760);
  EXPECT_EQ(mini.rope_dim(), 96);
  EXPECT_EQ(mini.sliding_window, 0) << "longer than the context";
  EXPECT_EQ(mini.max_position_embeddings, 4096) << "from there on longrope depends on the length";
  EXPECT_EQ(mini.LongestContext(), 131072);
  Json json = Phi4Mini();  // Phi-4.
  for (const char* key : {"rope_scaling", "partial_rotary_factor"}) json.erase(key);
  json["hidden_size"] = 5120;
  json["intermediate_size"] = 17920;
  json["num_attention_heads"] = 40;
  json["num_key_value_heads"] = 10;
  json["num_hidden_layers"] = 40;
  json["max_position_embeddings"] = 16384;
  json["vocab_size"] = 100352;
  json["bos_token_id"] = json["eos_token_id"] = 100257;
  json["sliding_window"] = 2047;
  json["tie_word_embeddings"] = false;
  const ModelConfig phi4 = Parse(json);
  EXPECT_EQ(phi4.Parameters(), 14659507200);
  EXPECT_EQ(phi4.rope_dim(), 128);
  EXPECT_EQ(phi4.sliding_window, 2047);
}

// A tensor that several projections are parts of is read, hashed and written once.
TEST(Phi3Test, ProjectionsArePartsOfStoredMatrices) {
  const ModelConfig config = Parse(Phi4Mini());
  const LayerWeights whole = LayerWeightsOf(config, 1);
  EXPECT_EQ(whole.k.name, "model.layers.1.self_attn.qkv_proj.weight");
  EXPECT_EQ(whole.k.shape, (std::vector<int64_t>{5120, 3072}));
  EXPECT_EQ(whole.k.rows, (IndexRange{3072, 4096}));
  EXPECT_EQ(whole.mlp->up.rows, (IndexRange{8192, 16384}));
  const ModelShard shard = *ShardModel(config, {1, 4});
  const LayerWeights part = LayerWeightsOf(config, shard, 1);
  EXPECT_EQ(part.q.rows, (IndexRange{6 * 128, 12 * 128}));
  EXPECT_EQ(part.v.rows, (IndexRange{4096 + 2 * 128, 4096 + 4 * 128}));
  EXPECT_EQ(part.mlp->gate.rows, (IndexRange{2048, 4096}));
  EXPECT_EQ(part.mlp->up.rows, (IndexRange{8192 + 2048, 8192 + 4096}));
  EXPECT_EQ(part.mlp->down.columns, (IndexRange{2048, 4096}));
  std::vector<std::string> names;
  for (const WeightSpec& spec : StageWeights(config, 1, 2)) {
    names.push_back(spec.name.substr(std::string("model.layers.1.").size()));
    EXPECT_FALSE(spec.rows.has_value());
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"input_layernorm.weight", "self_attn.qkv_proj.weight",
                                      "self_attn.o_proj.weight", "post_attention_layernorm.weight",
                                      "mlp.gate_up_proj.weight", "mlp.down_proj.weight"}));
}

TEST(Phi3Test, WhatDecidesTheMathematicsIsInTheFingerprint) {
  ExpectOtherFingerprints(Phi4Mini(),
                          {{"sliding_window", 2047}, {"original_max_position_embeddings", 8192}});
  Json plain = Phi4Mini();
  plain.erase("rope_scaling");
  ExpectOtherFingerprints(plain, {{"partial_rotary_factor", 0.5}});
  Json long_factors = Phi4Mini();
  long_factors["rope_scaling"]["long_factor"][1] = 2.0;
  ModelConfig stretched = Parse(long_factors);
  EXPECT_EQ(ConfigFingerprint(stretched), ConfigFingerprint(Parse(Phi4Mini())))
      << "what is not used does not count";
  stretched.Stretch(131072);
  EXPECT_NE(ConfigFingerprint(stretched), ConfigFingerprint(Parse(Phi4Mini())));
}

TEST(Phi3Test, RefusesByName) {
  ExpectRefused(
      Phi4Mini(),
      {{"partial_rotary_factor", 0.5, "\"rope_scaling.short_factor\" must list 32 numbers"},
       {"original_max_position_embeddings", nullptr,
        "\"original_max_position_embeddings\" is missing"},
       {"rope_scaling",
        {{"type", "yarn"}, {"factor", 4.0}},
        "\"rope_scaling.type\" is \"yarn\"; supported for Phi-3"},
       {"attention_bias", true, "\"attention_bias\" is not supported for Phi-3"},
       {"lm_head_bias", true, "\"lm_head_bias\" is not supported for Phi-3"},
       {"mlp_bias", true, "\"mlp_bias\" would change"},
       {"rms_norm_eps", nullptr, "\"rms_norm_eps\" is missing"},
       {"sliding_window", 0, "\"sliding_window\" must be between 1"},
       {"num_key_value_heads", 5, "\"num_key_value_heads\" is 5, which does not divide"}});
}

}  // namespace
}  // namespace baton
