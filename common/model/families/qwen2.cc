// Qwen2 and 2.5: Llama with a bias on the query, key and value projections.
#include "common/base/status.h"
#include "common/model/families/family.h"

namespace baton {
namespace {

absl::Status Configure(const ConfigReader& reader, ModelConfig& config) {
  // "sliding_window" alone has no effect: Qwen's configurations carry it switched off.
  BATON_RETURN_IF_ERROR(
      reader.RefuseUnless("use_sliding_window", 0, "is not supported; attention must be full"));
  config.qkv_bias = true;
  return DeriveHeadDim(reader, config);
}

}  // namespace

const Family kQwen2 = {"Qwen2ForCausalLM", "qwen2", 32768, 32, {}, Configure};

}  // namespace baton
