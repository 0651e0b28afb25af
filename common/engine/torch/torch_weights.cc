#include "common/engine/torch/torch_weights.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/safetensors.h"
#include "common/model/weight_names.h"

namespace baton {
namespace {

// FindWeight lets no other type through.
c10::ScalarType ScalarTypeOf(DType dtype) {
  if (dtype == DType::kBF16) return at::kBFloat16;
  return dtype == DType::kF16 ? at::kHalf : at::kFloat;
}

class Loader {
 public:
  Loader(WeightReader& reader, const ExecutorOptions& options, c10::Device device,
         c10::ScalarType type, int64_t elements_total)
      : reader_(reader),
        options_(options),
        device_(device),
        type_(type),
        elements_total_(elements_total) {}

  absl::StatusOr<at::Tensor> Tensor(const WeightSpec& spec) {
    BATON_ASSIGN_OR_RETURN(const StoredTensor stored, FindWeight(reader_, spec));
    at::Tensor tensor = at::empty(stored.shape, ScalarTypeOf(stored.dtype));
    BATON_RETURN_IF_ERROR(
        stored.Read(0, {static_cast<std::byte*>(tensor.data_ptr()), stored.byte_count}));
    elements_done_ += stored.ElementCount();
    if (options_.on_progress && elements_total_ > 0) {
      options_.on_progress(static_cast<double>(elements_done_) /
                           static_cast<double>(elements_total_));
    }
    return tensor.to(device_, type_);
  }

  absl::StatusOr<at::Tensor> Optional(const std::optional<WeightSpec>& spec) {
    if (!spec.has_value()) return at::Tensor();
    return Tensor(*spec);
  }

  // One below the other; undefined if the family has none of them.
  absl::StatusOr<at::Tensor> Stacked(const std::vector<std::optional<WeightSpec>>& specs) {
    std::vector<at::Tensor> parts;
    for (const std::optional<WeightSpec>& spec : specs) {
      if (!spec.has_value()) return at::Tensor();
      BATON_ASSIGN_OR_RETURN(parts.emplace_back(), Tensor(*spec));
    }
    return at::cat(parts);
  }

  absl::StatusOr<TorchLayer> Layer(const LayerWeights& weights) {
    TorchLayer layer;
    BATON_ASSIGN_OR_RETURN(layer.input_norm, Tensor(weights.input_norm));
    BATON_ASSIGN_OR_RETURN(layer.qkv, Stacked({weights.q, weights.k, weights.v}));
    BATON_ASSIGN_OR_RETURN(layer.qkv_bias,
                           Stacked({weights.q_bias, weights.k_bias, weights.v_bias}));
    BATON_ASSIGN_OR_RETURN(layer.q_norm, Optional(weights.q_norm));
    BATON_ASSIGN_OR_RETURN(layer.k_norm, Optional(weights.k_norm));
    BATON_ASSIGN_OR_RETURN(layer.o, Tensor(weights.o));
    BATON_ASSIGN_OR_RETURN(layer.post_attention_norm, Tensor(weights.post_attention_norm));
    BATON_ASSIGN_OR_RETURN(layer.gate_up, Stacked({weights.gate, weights.up}));
    BATON_ASSIGN_OR_RETURN(layer.down, Tensor(weights.down));
    return layer;
  }

 private:
  WeightReader& reader_;
  const ExecutorOptions& options_;
  const c10::Device device_;
  const c10::ScalarType type_;
  const int64_t elements_total_;
  int64_t elements_done_ = 0;
};

int64_t ElementsOf(const std::vector<WeightSpec>& specs) {
  int64_t total = 0;
  for (const WeightSpec& spec : specs) {
    int64_t elements = 1;
    for (const int64_t size : spec.shape) elements *= size;
    total += elements;
  }
  return total;
}

}  // namespace

absl::StatusOr<TorchWeights> LoadTorchWeights(WeightReader& reader, const ExecutorOptions& options,
                                              const ModelConfig& config, LayerRange layers,
                                              c10::Device device, c10::ScalarType type) {
  Loader loader(reader, options, device, type,
                ElementsOf(StageWeights(config, layers.begin, layers.end)));
  TorchWeights weights;
  const bool first = layers.begin == 0;
  const bool last = layers.end == config.num_hidden_layers;
  if (first) {
    BATON_ASSIGN_OR_RETURN(weights.embedding, loader.Tensor(EmbeddingWeight(config)));
  }
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    BATON_ASSIGN_OR_RETURN(weights.layers.emplace_back(),
                           loader.Layer(LayerWeightsOf(config, layer)));
  }
  if (!last) return weights;
  BATON_ASSIGN_OR_RETURN(weights.final_norm, loader.Tensor(FinalNormWeight(config)));
  if (first && config.tie_word_embeddings) {
    weights.head = weights.embedding;
  } else {
    BATON_ASSIGN_OR_RETURN(weights.head, loader.Tensor(HeadWeight(config)));
  }
  return weights;
}

}  // namespace baton
