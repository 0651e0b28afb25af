// Mistral and Mixtral: Llama with a window on attention, if config.json has one, and with experts.
#include "common/base/status.h"
#include "common/model/families/family.h"

namespace baton {
namespace {

constexpr int kMistralWindow = 4096;

absl::Status ConfigureMistral(const ConfigReader& reader, ModelConfig& config) {
  BATON_RETURN_IF_ERROR(reader.RefuseUnless("attention_bias", 0, "is not supported for Mistral"));
  BATON_RETURN_IF_ERROR(ParseSlidingWindow(reader, kMistralWindow, config));
  return DeriveHeadDim(reader, config);
}

absl::Status ConfigureMixtral(const ConfigReader& reader, ModelConfig& config) {
  BATON_RETURN_IF_ERROR(reader.RefuseUnless("attention_bias", 0, "is not supported for Mixtral"));
  BATON_RETURN_IF_ERROR(ParseSlidingWindow(reader, config.max_position_embeddings, config));
  BATON_RETURN_IF_ERROR(ParseExperts(reader, config));
  // All layers are sparse, and "intermediate_size" is an expert's.
  config.experts.inner = config.intermediate_size;
  config.experts.normalise = true;
  config.experts.names = {"block_sparse_moe", "w1", "w3", "w2"};
  BATON_RETURN_IF_ERROR(RequireNormAndTheta(reader));
  return DeriveHeadDim(reader, config);
}

}  // namespace

const Family kMistral = {"MistralForCausalLM", "mistral", 131072, 8, {}, ConfigureMistral};
const Family kMixtral = {"MixtralForCausalLM",  "mixtral",       131072, 8,
                         {"num_local_experts"}, ConfigureMixtral};

}  // namespace baton
