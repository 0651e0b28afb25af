// DeepSeek V2 and V3 (and Kimi K2, whose architecture V3's is): latent attention, and experts of
// which one is shared by all tokens and the others are chosen within groups.
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/families/family.h"

namespace baton {
namespace {

constexpr int kMaxRank = 1 << 13;
constexpr int kMaxHead = 1 << 10;
constexpr int kMaxInner = 1 << 20;
constexpr int kMaxShared = 64;
constexpr int kMaxMtpLayers = 64;
constexpr double kMaxScaling = 1e3;

absl::Status ParseLatent(const ConfigReader& reader, ModelConfig& config) {
  LatentAttention& latent = config.latent;
  BATON_ASSIGN_OR_RETURN(latent.kv_rank, reader.Int("kv_lora_rank", 1, kMaxRank));
  BATON_ASSIGN_OR_RETURN(latent.nope_dim, reader.Int("qk_nope_head_dim", 1, kMaxHead));
  BATON_ASSIGN_OR_RETURN(latent.rope_dim, reader.Int("qk_rope_head_dim", 2, kMaxHead));
  BATON_ASSIGN_OR_RETURN(latent.value_dim, reader.Int("v_head_dim", 1, kMaxHead));
  if (reader.Has("q_lora_rank")) {
    BATON_ASSIGN_OR_RETURN(latent.q_rank, reader.Int("q_lora_rank", 1, kMaxRank));
  } else if (!reader.HasKey("q_lora_rank")) {
    return reader.Error("q_lora_rank", "is missing; it is mandatory, null where there is none");
  }
  if (latent.rope_dim % 2 != 0) {
    return reader.Error("qk_rope_head_dim", absl::StrCat("must be even, is ", latent.rope_dim));
  }
  BATON_ASSIGN_OR_RETURN(latent.interleaved, reader.BoolOr("rope_interleave", true));
  if (config.num_key_value_heads != config.num_attention_heads) {
    return reader.Error(
        "num_key_value_heads",
        absl::StrCat("is ", config.num_key_value_heads, ", but latent attention ",
                     "has as many as \"num_attention_heads\" (", config.num_attention_heads, ")"));
  }
  config.num_key_value_heads = 1;
  config.head_dim = latent.row();
  config.kv_planes = 1;
  return absl::OkStatus();
}

absl::Status ParseGroups(const ConfigReader& reader, Experts& experts) {
  BATON_ASSIGN_OR_RETURN(experts.groups, reader.Int("n_group", 1, experts.count));
  if (experts.count % experts.groups != 0) {
    return reader.Error("n_group", absl::StrCat("is ", experts.groups, ", which does not divide ",
                                                "\"n_routed_experts\" (", experts.count, ")"));
  }
  BATON_ASSIGN_OR_RETURN(experts.groups_kept, reader.Int("topk_group", 1, experts.count));
  if (experts.groups_kept > experts.groups) {
    return reader.Error("topk_group", absl::StrCat("is ", experts.groups_kept, ", more than ",
                                                   "\"n_group\" (", experts.groups, ")"));
  }
  const int of_group = experts.count / experts.groups;
  if (experts.group_score == GroupScore::kSumOfTwo && of_group < 2) {
    return reader.Error("n_group", absl::StrCat("is ", experts.groups, ", which leaves each group ",
                                                "one expert; it must have two"));
  }
  if (experts.active <= experts.groups_kept * of_group) return absl::OkStatus();
  return reader.Error(
      "num_experts_per_tok",
      absl::StrCat("is ", experts.active, ", more than the ", experts.groups_kept * of_group,
                   " experts of \"topk_group\" (", experts.groups_kept, ") groups"));
}

// How experts are chosen. Each class knows one score, and V2 two methods.
absl::Status ParseRouter(const ConfigReader& reader, bool sigmoid, Experts& experts) {
  const char* const score = sigmoid ? "sigmoid" : "softmax";
  BATON_ASSIGN_OR_RETURN(const std::string scoring, reader.StringOr("scoring_func", score));
  if (scoring != score) {
    return reader.Unsupported("scoring_func",
                              absl::StrCat("is \"", scoring, "\"; supported is \"", score, "\""));
  }
  constexpr const char* kGrouped = "group_limited_greedy";
  BATON_ASSIGN_OR_RETURN(const std::string method,
                         reader.StringOr("topk_method", sigmoid ? "noaux_tc" : "greedy"));
  if (sigmoid ? method != "noaux_tc" : method != "greedy" && method != kGrouped) {
    return reader.Unsupported(
        "topk_method",
        absl::StrCat("is \"", method, "\"; supported ",
                     sigmoid ? "is \"noaux_tc\"" : "are \"greedy\" and \"group_limited_greedy\""));
  }
  if (sigmoid) {
    experts.score = ExpertScore::kSigmoid;
    experts.bias = true;
    experts.group_score = GroupScore::kSumOfTwo;
  }
  return sigmoid || method == kGrouped ? ParseGroups(reader, experts) : absl::OkStatus();
}

absl::Status ParseSparseLayers(const ConfigReader& reader, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(const int dense,
                         reader.Int("first_k_dense_replace", 0, config.num_hidden_layers));
  BATON_ASSIGN_OR_RETURN(const int step,
                         reader.IntOr("moe_layer_freq", 1, 1, config.num_hidden_layers));
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (layer < dense || layer % step != 0) config.experts.dense_layers.push_back(layer);
  }
  return absl::OkStatus();
}

absl::Status Configure(const ConfigReader& reader, bool sigmoid, ModelConfig& config) {
  BATON_RETURN_IF_ERROR(reader.RefuseUnless("attention_bias", 0, "is not supported for DeepSeek"));
  BATON_RETURN_IF_ERROR(ParseLatent(reader, config));
  BATON_RETURN_IF_ERROR(ParseExperts(reader, config, "n_routed_experts"));
  Experts& experts = config.experts;
  BATON_ASSIGN_OR_RETURN(experts.inner, reader.Int("moe_intermediate_size", 1, kMaxInner));
  BATON_ASSIGN_OR_RETURN(const int shared, reader.IntOr("n_shared_experts", 0, 0, kMaxShared));
  experts.shared_inner = shared * experts.inner;
  if (experts.shared_inner > kMaxInner) {
    return reader.Error(
        "n_shared_experts",
        absl::StrCat("is ", shared, ", which makes ", experts.shared_inner,
                     " columns of \"moe_intermediate_size\", more than ", kMaxInner));
  }
  BATON_ASSIGN_OR_RETURN(experts.scaling,
                         reader.Number("routed_scaling_factor", 1e-3, kMaxScaling));
  BATON_RETURN_IF_ERROR(ParseRouter(reader, sigmoid, experts));
  BATON_RETURN_IF_ERROR(ParseSparseLayers(reader, config));
  BATON_ASSIGN_OR_RETURN(config.mtp_layers,
                         reader.IntOr("num_nextn_predict_layers", 0, 0, kMaxMtpLayers));
  return absl::OkStatus();
}

absl::Status ConfigureV2(const ConfigReader& reader, ModelConfig& config) {
  // DeepSeek's own code then drops the factor, and transformers ignores it.
  BATON_RETURN_IF_ERROR(
      reader.RefuseUnless("norm_topk_prob", 0, "is not supported for DeepSeek-V2"));
  return Configure(reader, /*sigmoid=*/false, config);
}

absl::Status ConfigureV3(const ConfigReader& reader, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(config.experts.normalise, reader.BoolOr("norm_topk_prob", true));
  return Configure(reader, /*sigmoid=*/true, config);
}

}  // namespace

const Family kDeepSeekV2 = {"DeepseekV2ForCausalLM",
                            "deepseek_v2",
                            2048,
                            0,
                            {"n_routed_experts", "n_shared_experts", "kv_lora_rank"},
                            ConfigureV2};
const Family kDeepSeekV3 = {"DeepseekV3ForCausalLM",
                            "deepseek_v3",
                            4096,
                            0,
                            {"n_routed_experts", "n_shared_experts", "kv_lora_rank"},
                            ConfigureV3,
                            "kimi_k2"};

}  // namespace baton
