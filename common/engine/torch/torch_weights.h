// The weights of a range of layers as tensors. Part of the plugin.
#ifndef COMMON_ENGINE_TORCH_TORCH_WEIGHTS_H_
#define COMMON_ENGINE_TORCH_TORCH_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/executor_options.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/types/kv_layout.h"

namespace baton {

// One decoder layer. Projections that read the same input are one matrix; undefined tensors are
// what the family does not have.
struct TorchLayer {
  at::Tensor input_norm;           // [hidden]
  at::Tensor qkv, qkv_bias;        // [query_size + 2 * kv_size, hidden]
  at::Tensor q_norm, k_norm;       // [head_dim]
  at::Tensor o;                    // [hidden, query_size]
  at::Tensor post_attention_norm;  // [hidden]
  at::Tensor gate_up;              // [2 * intermediate, hidden], gate first.
  at::Tensor down;                 // [hidden, intermediate]
};

struct TorchWeights {
  std::vector<TorchLayer> layers;
  at::Tensor embedding;   // First stage, [vocab, hidden].
  at::Tensor final_norm;  // Last stage.
  at::Tensor head;        // Last stage, [vocab, hidden]; the embedding's memory if they are tied.
};

// Reads what the layers and the ends of the model consist of to `device`, as `type`.
absl::StatusOr<TorchWeights> LoadTorchWeights(WeightReader& reader, const ExecutorOptions& options,
                                              const ModelConfig& config, LayerRange layers,
                                              c10::Device device, c10::ScalarType type);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_TORCH_WEIGHTS_H_
