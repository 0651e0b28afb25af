// Qwen3 dense: Llama with RMSNorm over each head's queries and keys.
#include "common/base/status.h"
#include "common/model/families/family.h"

namespace baton {
namespace {

absl::Status Configure(const ConfigReader& reader, ModelConfig& config) {
  BATON_RETURN_IF_ERROR(
      reader.RefuseUnless("use_sliding_window", 0, "is not supported; attention must be full"));
  BATON_ASSIGN_OR_RETURN(config.qkv_bias, reader.BoolOr("attention_bias", false));
  config.o_bias = config.qkv_bias;
  config.qk_norm = true;
  // Unlike Llama and Qwen2, the class has a default of its own and never divides hidden_size.
  if (config.head_dim == 0) config.head_dim = 128;
  return absl::OkStatus();
}

}  // namespace

const Family kQwen3 = {"Qwen3ForCausalLM", "qwen3", 32768, 32, {}, Configure};

}  // namespace baton
