// GLM-4.5 to 4.7: Llama's attention with biases, norms by `use_qk_norm` and heads of which the
// first part is turned; DeepSeek-V3's experts.
#include "common/base/status.h"
#include "common/model/families/family.h"

namespace baton {
namespace {

absl::Status Configure(const ConfigReader& reader, ModelConfig& config) {
  BATON_RETURN_IF_ERROR(RequireNormAndTheta(reader));
  BATON_RETURN_IF_ERROR(reader.RefuseUnless("sliding_window", 0, "is not supported for GLM-4"));
  BATON_RETURN_IF_ERROR(reader.RefuseUnless("moe_layer_freq", 1, "is not supported for GLM-4"));
  BATON_RETURN_IF_ERROR(DeriveHeadDim(reader, config));
  BATON_RETURN_IF_ERROR(ParsePartialRotary(reader, 0.5, config));
  BATON_ASSIGN_OR_RETURN(config.qkv_bias, reader.BoolOr("attention_bias", false));
  BATON_ASSIGN_OR_RETURN(config.qk_norm, reader.BoolOr("use_qk_norm", false));
  // The class has one shared expert by default, DeepSeek's code none.
  if (!reader.Has("n_shared_experts")) {
    return reader.Error("n_shared_experts", "is missing; it is mandatory");
  }
  return ParseRoutedExperts(reader, /*sigmoid=*/true, config);
}

}  // namespace

const Family kGlm4Moe = {
    "Glm4MoeForCausalLM",
    "glm4_moe",
    131072,
    8,
    {"n_routed_experts", "n_shared_experts", "use_qk_norm", "partial_rotary_factor"},
    Configure};

}  // namespace baton
