// The loaded weights of a range of layers, ready to compute with.
#ifndef COMMON_ENGINE_STAGE_WEIGHTS_H_
#define COMMON_ENGINE_STAGE_WEIGHTS_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/linear.h"
#include "common/engine/weight_conversion.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"

namespace baton {

// One decoder layer. Projections that read the same input are one matrix.
struct LayerBlock {
  std::vector<float> input_norm;           // [hidden]
  std::unique_ptr<Linear> qkv;             // [query_size + 2 * kv_size, hidden]
  std::vector<float> qkv_bias;             // [query_size + 2 * kv_size], or empty.
  std::vector<float> q_norm, k_norm;       // [head_dim], or empty.
  std::unique_ptr<Linear> o;               // [hidden, query_size]
  std::vector<float> post_attention_norm;  // [hidden]
  std::unique_ptr<Linear> gate_up;         // [2 * intermediate, hidden], gate first.
  std::unique_ptr<Linear> down;            // [hidden, intermediate]
};

struct StageBlocks {
  std::vector<LayerBlock> layers;
  std::unique_ptr<EmbeddingTable> embedding;  // First stage.
  std::vector<float> final_norm;              // Last stage.
  std::unique_ptr<Linear> head;               // Last stage, [vocab, hidden].
};

// Reads layers [layer_begin, layer_end) and what belongs to the ends of the model. Memory beyond
// the result is bounded by one block of rows.
absl::StatusOr<StageBlocks> LoadStage(WeightReader& reader, const ModelConfig& config,
                                      int layer_begin, int layer_end,
                                      const LinearFactory& make_linear,
                                      const std::function<void(double)>& on_progress);

}  // namespace baton

#endif  // COMMON_ENGINE_STAGE_WEIGHTS_H_
