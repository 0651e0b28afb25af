// The weights of a range of layers as tensors. Part of the plugin.
#ifndef COMMON_ENGINE_TORCH_TORCH_WEIGHTS_H_
#define COMMON_ENGINE_TORCH_TORCH_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/weights/stage_setup.h"
#include "common/types/element_type.h"

namespace baton {

// Vectors are undefined where the family has none.
using TorchLayer = DecoderLayer<at::Tensor, at::Tensor>;

c10::ScalarType ScalarTypeOf(ElementType type);

// A rank's part of each.
struct TorchWeights {
  std::vector<TorchLayer> layers;
  at::Tensor embedding;   // First stage, [vocab, hidden].
  at::Tensor final_norm;  // Last stage.
  at::Tensor head;        // Last stage, [vocab, hidden]; the embedding's memory if they are tied.
};

// Reads what the layers and the ends of the model consist of to `device`, all of it as
// `stage.dtype`: norms and biases are rounded as well, as Hugging Face does. InvalidArgument,
// naming the tensor, where a matrix would have to be rounded and must not.
absl::StatusOr<TorchWeights> LoadTorchWeights(StageSetup& stage, c10::Device device,
                                              const std::function<void(double)>& on_progress);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_TORCH_WEIGHTS_H_
