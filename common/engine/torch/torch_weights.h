// The weights of a range of layers as tensors. Part of the plugin.
#ifndef COMMON_ENGINE_TORCH_TORCH_WEIGHTS_H_
#define COMMON_ENGINE_TORCH_TORCH_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/torch/torch_experts.h"
#include "common/engine/weights/stage_setup.h"
#include "common/types/kv_layout.h"

namespace baton {

struct TorchLayer : DecoderLayer<at::Tensor, at::Tensor, at::Tensor> {
  StackedExperts stacked;  // A sparse layer's; `experts` are views of it.
};

c10::ScalarType ScalarTypeOf(ElementType type);

// One rank's part of the weights.
struct TorchWeights {
  std::vector<TorchLayer> layers;
  at::Tensor embedding;   // First stage, [vocab, hidden].
  at::Tensor final_norm;  // Last stage.
  at::Tensor head;        // Last stage, [vocab, hidden]; the embedding's memory if they are tied.
};

// Reads the layers, and the embedding, norm and head that this stage has, to `device` as
// `stage.dtype`. Norms and biases are rounded as well, as Hugging Face does, but
// not norms that add one, which are float32. InvalidArgument names
// a matrix that would have to be rounded but must not.
absl::StatusOr<TorchWeights> LoadTorchWeights(StageSetup& stage, c10::Device device,
                                              const std::function<void(double)>& on_progress);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_TORCH_WEIGHTS_H_
