// Llama 2, 3 and 3.1+: the blocks in their plain form, with biases if config.json says so.
#include "common/base/status.h"
#include "common/model/families/family.h"

namespace baton {
namespace {

absl::Status Configure(const ConfigReader& reader, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(config.qkv_bias, reader.BoolOr("attention_bias", false));
  config.o_bias = config.qkv_bias;
  BATON_ASSIGN_OR_RETURN(config.mlp_bias, reader.BoolOr("mlp_bias", false));
  BATON_RETURN_IF_ERROR(reader.RefuseUnless("sliding_window", 0, "is not supported for Llama"));
  return DeriveHeadDim(reader, config);
}

}  // namespace

const Family kLlama = {"LlamaForCausalLM", "llama", 2048, 0, {"mlp_bias"}, Configure};

}  // namespace baton
