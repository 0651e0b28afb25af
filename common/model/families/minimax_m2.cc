// MiniMax-M2 and M2.x: one norm over all of a token's queries and one over its keys, heads that are
// turned in part, experts in all layers by a sigmoid with a bias.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/families/family.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr int kMaxMtpModules = 64;

// What older models of the name have otherwise.
absl::Status RefuseOlderMath(const ConfigReader& reader) {
  for (const char* key : {"attention_bias", "sliding_window", "shared_intermediate_size"}) {
    BATON_RETURN_IF_ERROR(reader.RefuseUnless(key, 0, "is not supported for MiniMax-M2"));
  }
  for (const char* key : {"routed_scaling_factor", "layernorm_full_attention_beta",
                          "layernorm_linear_attention_beta", "layernorm_mlp_beta"}) {
    BATON_RETURN_IF_ERROR(reader.RefuseUnless(key, 1, "is not supported for MiniMax-M2"));
  }
  for (const auto& [key, only] :
       {std::pair{"scoring_func", "sigmoid"}, {"qk_norm_type", "per_layer"}}) {
    BATON_RETURN_IF_ERROR(reader.Expect(key, only, {only}));
  }
  BATON_ASSIGN_OR_RETURN(const bool norms, reader.BoolOr("use_qk_norm", true));
  if (!norms) return reader.Unsupported("use_qk_norm", "must be true for MiniMax-M2");
  constexpr const char* kKinds = "attn_type_list";
  const Json* kinds = reader.Find(kKinds);
  if (kinds == nullptr) return absl::OkStatus();
  if (!kinds->is_array()) return reader.Error(kKinds, "must be a list");
  for (const Json& kind : *kinds) {
    if (kind == 1) continue;
    return reader.Unsupported(
        kKinds, absl::StrCat("has ", kind.dump(), "; supported is 1, which is full attention"));
  }
  return absl::OkStatus();
}

// The published name is "rotary_dim", transformers writes a factor beside it.
absl::Status ParseRotaryDim(const ConfigReader& reader, ModelConfig& config) {
  constexpr const char* kKey = "rotary_dim";
  if (!reader.Has(kKey)) return ParsePartialRotary(reader, 1, config);
  BATON_ASSIGN_OR_RETURN(const int dim, reader.Int(kKey, 2, config.head_dim));
  BATON_RETURN_IF_ERROR(
      ParsePartialRotary(reader, static_cast<double>(dim) / config.head_dim, config));
  if (config.rope_dim() == dim) return absl::OkStatus();
  return reader.Error(kKey, absl::StrCat("is ", dim, ", but \"partial_rotary_factor\" makes it ",
                                         config.rope_dim()));
}

absl::Status Configure(const ConfigReader& reader, ModelConfig& config) {
  BATON_RETURN_IF_ERROR(RefuseOlderMath(reader));
  BATON_RETURN_IF_ERROR(RequireNormAndTheta(reader));
  if (config.head_dim == 0) config.head_dim = 128;  // The class's; it divides nothing.
  BATON_RETURN_IF_ERROR(ParseRotaryDim(reader, config));
  config.qk_norm = config.qk_norm_whole = true;
  BATON_RETURN_IF_ERROR(ParseExperts(reader, config));
  Experts& experts = config.experts;
  experts.inner = config.intermediate_size;
  experts.normalise = true;
  experts.score = ExpertScore::kSigmoid;
  BATON_ASSIGN_OR_RETURN(experts.bias, reader.BoolOr("use_routing_bias", true));
  experts.names = {"block_sparse_moe", "w1", "w3", "w2", "e_score_correction_bias"};
  BATON_ASSIGN_OR_RETURN(config.mtp_layers, reader.IntOr("num_mtp_modules", 0, 0, kMaxMtpModules));
  return absl::OkStatus();
}

}  // namespace

const Family kMiniMaxM2 = {
    "MiniMaxM2ForCausalLM",
    "minimax_m2",
    196608,
    8,
    {"num_local_experts", "num_experts", "use_qk_norm", "partial_rotary_factor"},
    Configure,
    "minimax"};  // As first published.

}  // namespace baton
