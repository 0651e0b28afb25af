// Llama 2, 3 and 3.1+: the blocks in their plain form.
#include "common/base/status.h"
#include "common/model/families/family.h"

namespace baton {
namespace {

absl::Status Configure(const ConfigReader& reader, ModelConfig& config) {
  BATON_RETURN_IF_ERROR(reader.RefuseUnless("attention_bias", 0, "is not supported for Llama"));
  BATON_RETURN_IF_ERROR(reader.RefuseUnless("sliding_window", 0, "is not supported for Llama"));
  return DeriveHeadDim(reader, config);
}

}  // namespace

const Family kLlama = {"LlamaForCausalLM", "llama", 2048, 0, Configure};

}  // namespace baton
