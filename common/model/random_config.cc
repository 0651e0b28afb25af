#include "common/model/random_config.h"

#include <algorithm>
#include <string_view>

#include "common/model/families/family.h"
#include "common/model/model_config.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

int RoundedUp(int value, int step) { return (value + step - 1) / step * step; }

// As many as four groups of which half are kept.
void AddGroups(const RandomModelOptions& options, Json& config) {
  int groups = 4;
  while (groups > 1 && (options.num_experts % groups != 0 || options.num_experts / groups < 2)) {
    groups /= 2;
  }
  const bool half = options.num_experts_per_tok <= options.num_experts / 2 && groups > 1;
  config["n_group"] = groups;
  config["topk_group"] = half ? groups / 2 : groups;
}

// The first layer is dense, and one expert is shared.
void AddRoutedExperts(const RandomModelOptions& options, bool sigmoid, Json& config) {
  config["n_routed_experts"] = options.num_experts;
  config["num_experts_per_tok"] = options.num_experts_per_tok;
  config["moe_intermediate_size"] = options.moe_intermediate_size;
  config["n_shared_experts"] = 1;
  config["first_k_dense_replace"] = options.num_hidden_layers > 1 ? 1 : 0;
  config["norm_topk_prob"] = sigmoid;
  config["routed_scaling_factor"] = sigmoid ? 2.5 : 1.0;
}

// With a head of 128 the ranks and rope of DeepSeek-V3.
void AddDeepSeek(const RandomModelOptions& options, bool v3, Json& config) {
  constexpr int kTile = 16;
  config["num_key_value_heads"] = options.num_attention_heads;
  config["qk_nope_head_dim"] = options.head_dim;
  config["v_head_dim"] = options.head_dim;
  config["qk_rope_head_dim"] = RoundedUp(options.head_dim / 2, kTile);
  config["kv_lora_rank"] = RoundedUp(4 * options.head_dim, kTile);
  config["q_lora_rank"] = v3 ? Json(RoundedUp(options.hidden_size / 4, kTile)) : Json(nullptr);
  AddRoutedExperts(options, v3, config);
  config["moe_layer_freq"] = 1;
  config["scoring_func"] = v3 ? "sigmoid" : "softmax";
  config["topk_method"] = v3 ? "noaux_tc" : "greedy";
  if (!v3) return;
  AddGroups(options, config);
  config["rope_scaling"] = {
      {"type", "yarn"},
      {"factor", 4.0},
      {"mscale", 1.0},
      {"mscale_all_dim", 1.0},
      {"beta_fast", 32},
      {"beta_slow", 1},
      {"original_max_position_embeddings", std::max(1, options.max_position_embeddings / 4)}};
}

// As GLM-4.6: one group, norms and biases.
void AddGlm4(const RandomModelOptions& options, Json& config) {
  AddRoutedExperts(options, /*sigmoid=*/true, config);
  config["n_group"] = config["topk_group"] = 1;
  config["use_qk_norm"] = config["attention_bias"] = true;
  config["partial_rotary_factor"] = 0.5;
  config["num_nextn_predict_layers"] = 0;
}

// As published. Sizes of experts are "intermediate_size".
void AddMiniMaxM2(const RandomModelOptions& options, Json& config) {
  config["num_local_experts"] = options.num_experts;
  config["num_experts_per_tok"] = options.num_experts_per_tok;
  config["rotary_dim"] = options.head_dim / 2;
  config["scoring_func"] = "sigmoid";
  config["qk_norm_type"] = "per_layer";
  config["use_qk_norm"] = config["use_routing_bias"] = true;
  config["attn_type_list"] = std::vector<int>(static_cast<size_t>(options.num_hidden_layers), 1);
}

// As published, but for the window. Every sixth layer of Gemma 3, or the last one, sees all tokens.
void AddGemma(const RandomModelOptions& options, Json& config) {
  config["hidden_activation"] = "gelu_pytorch_tanh";
  const std::string_view name = options.architecture;
  if (name == kGemma.architecture) return;
  config["sliding_window"] =
      options.sliding_window > 0 ? Json(options.sliding_window) : Json(nullptr);
  config["query_pre_attn_scalar"] = 2 * options.head_dim;
  if (name == kGemma2.architecture) {
    config["attn_logit_softcapping"] = 50.0;
    config["final_logit_softcapping"] = 30.0;
    return;
  }
  constexpr int kPattern = 6;
  config["sliding_window_pattern"] = std::min(kPattern, std::max(1, options.num_hidden_layers));
  config["rope_local_base_freq"] = 10000.0;
}

// As each is published.
Json Quantization(RandomModelOptions::Scales scales) {
  switch (scales) {
    case RandomModelOptions::Scales::kBlocks:
      return {{"quant_method", "fp8"},
              {"fmt", "e4m3"},
              {"activation_scheme", "dynamic"},
              {"weight_block_size", {kFp8Block, kFp8Block}}};
    case RandomModelOptions::Scales::kRows:
      return {{"quant_method", "compressed-tensors"},
              {"format", "float-quantized"},
              {"config_groups",
               {{"group_0",
                 {{"targets", {"Linear"}},
                  {"weights", {{"type", "float"}, {"num_bits", 8}, {"strategy", "channel"}}}}}}},
              {"ignore", {"lm_head"}}};
    case RandomModelOptions::Scales::kTensor:
      return {{"quant_method", "fp8"}, {"activation_scheme", "static"}};
  }
  return {};
}

// What only some families have. A class's own defaults are what config.json would say anyway.
void AddFeatures(const RandomModelOptions& options, Json& config) {
  const std::string_view name = options.architecture;
  if (options.fp8) config["quantization_config"] = Quantization(options.fp8_scales);
  if (name == kQwen3Moe.architecture) {
    config["num_experts"] = options.num_experts;
    config["num_experts_per_tok"] = options.num_experts_per_tok;
    config["moe_intermediate_size"] = options.moe_intermediate_size;
    config["norm_topk_prob"] = true;
    config["decoder_sparse_step"] = options.decoder_sparse_step;
    config["mlp_only_layers"] = options.mlp_only_layers;
  }
  if (name == kMixtral.architecture) {
    config["num_local_experts"] = options.num_experts;
    config["num_experts_per_tok"] = options.num_experts_per_tok;
  }
  if (name == kPhi3.architecture) config["partial_rotary_factor"] = 0.75;  // As Phi-4-mini.
  if (name == kMixtral.architecture || name == kMistral.architecture ||
      name == kPhi3.architecture) {
    config["sliding_window"] =
        options.sliding_window > 0 ? Json(options.sliding_window) : Json(nullptr);
  }
  if (name == kDeepSeekV2.architecture || name == kDeepSeekV3.architecture) {
    AddDeepSeek(options, name == kDeepSeekV3.architecture, config);
  }
  if (name == kGlm4Moe.architecture) AddGlm4(options, config);
  if (name == kMiniMaxM2.architecture) AddMiniMaxM2(options, config);
  for (const Family* gemma : {&kGemma, &kGemma2, &kGemma3, &kGemma3Multimodal}) {
    if (name == gemma->architecture) AddGemma(options, config);
  }
  if (!options.biases) return;
  config["attention_bias"] = true;
  if (name == kLlama.architecture) config["mlp_bias"] = true;
}

}  // namespace

Json RandomConfig(const RandomModelOptions& options) {
  const Family* family = FindFamily(options.architecture);
  Json config = {{"architectures", Json::array({options.architecture})}};
  // An unknown architecture is refused when the result is parsed.
  if (family != nullptr) config["model_type"] = family->model_type;
  config["hidden_size"] = options.hidden_size;
  config["intermediate_size"] = options.intermediate_size;
  config["num_hidden_layers"] = options.num_hidden_layers;
  config["num_attention_heads"] = options.num_attention_heads;
  config["num_key_value_heads"] = options.num_key_value_heads;
  AddFeatures(options, config);
  config["head_dim"] = options.head_dim;
  config["vocab_size"] = options.vocab_size;
  config["max_position_embeddings"] = options.max_position_embeddings;
  config["rms_norm_eps"] = 1e-6;
  config["rope_theta"] = options.rope_theta;
  if (!config.contains("hidden_activation")) config["hidden_act"] = "silu";
  config["tie_word_embeddings"] = options.tie_word_embeddings;
  config["torch_dtype"] = options.dtype == DType::kBF16  ? "bfloat16"
                          : options.dtype == DType::kF16 ? "float16"
                                                         : "float32";
  if (options.llama3_rope_scaling) {
    config["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", 8.0},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0},
        {"original_max_position_embeddings", std::max(1, options.max_position_embeddings / 4)}};
  }
  if (family == nullptr || *family->part == '\0') return config;
  Json whole = {{"architectures", config["architectures"]}, {"model_type", config["model_type"]}};
  config.erase("architectures");
  config.erase("model_type");
  whole[family->part] = config;
  return whole;
}

}  // namespace baton
