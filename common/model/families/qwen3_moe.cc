// Qwen3 with experts (30B-A3B, 235B-A22B, Coder): Qwen3 whose feed-forward layers are sparse, all
// or some of them.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/families/family.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr int kMaxInner = 1 << 20;

absl::Status ParseDenseLayers(const ConfigReader& reader, ModelConfig& config) {
  constexpr const char* kKey = "mlp_only_layers";
  const Json* list = reader.Find(kKey);
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array() || list->size() > static_cast<size_t>(config.num_hidden_layers)) {
    return reader.Error(kKey, "must be a list of at most \"num_hidden_layers\" layers");
  }
  for (const Json& layer : *list) {
    if (!layer.is_number_integer() || layer.get<int64_t>() < 0 ||
        layer.get<int64_t>() >= config.num_hidden_layers) {
      return reader.Error(kKey, absl::StrCat("must list layers from 0 to ",
                                             config.num_hidden_layers - 1, ", got ", layer.dump()));
    }
    config.experts.dense_layers.push_back(layer.get<int>());
  }
  return absl::OkStatus();
}

absl::Status Configure(const ConfigReader& reader, ModelConfig& config) {
  BATON_RETURN_IF_ERROR(
      reader.RefuseUnless("use_sliding_window", 0, "is not supported; attention must be full"));
  BATON_RETURN_IF_ERROR(ParseExperts(reader, config));
  BATON_ASSIGN_OR_RETURN(config.experts.inner, reader.Int("moe_intermediate_size", 1, kMaxInner));
  BATON_ASSIGN_OR_RETURN(config.experts.normalise, reader.BoolOr("norm_topk_prob", false));
  BATON_ASSIGN_OR_RETURN(config.experts.step,
                         reader.IntOr("decoder_sparse_step", 1, 1, config.num_hidden_layers));
  BATON_RETURN_IF_ERROR(ParseDenseLayers(reader, config));
  BATON_ASSIGN_OR_RETURN(config.qkv_bias, reader.BoolOr("attention_bias", false));
  config.o_bias = config.qkv_bias;
  config.qk_norm = true;
  return DeriveHeadDim(reader, config);
}

}  // namespace

const Family kQwen3Moe = {
    "Qwen3MoeForCausalLM", "qwen3_moe", 32768, 4, {"num_experts", "num_local_experts"}, Configure};

}  // namespace baton
