// DeepSeek V2 and V3 (and Kimi K2, whose architecture V3's is): latent attention, and routed
// experts beside shared ones.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/families/family.h"

namespace baton {
namespace {

constexpr int kMaxRank = 1 << 13;
constexpr int kMaxHead = 1 << 10;

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

absl::Status Configure(const ConfigReader& reader, bool sigmoid, ModelConfig& config) {
  BATON_RETURN_IF_ERROR(reader.RefuseUnless("attention_bias", 0, "is not supported for DeepSeek"));
  BATON_RETURN_IF_ERROR(ParseLatent(reader, config));
  return ParseRoutedExperts(reader, sigmoid, config);
}

absl::Status ConfigureV2(const ConfigReader& reader, ModelConfig& config) {
  // DeepSeek's own code then drops the factor, and transformers ignores it.
  BATON_RETURN_IF_ERROR(
      reader.RefuseUnless("norm_topk_prob", 0, "is not supported for DeepSeek-V2"));
  return Configure(reader, /*sigmoid=*/false, config);
}

absl::Status ConfigureV3(const ConfigReader& reader, ModelConfig& config) {
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
