#include "common/engine/torch/torch_weights.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/engine/weights/block_scales.h"
#include "common/model/safetensors.h"
#include "common/model/weight_names.h"
#include "common/model/weight_part.h"

namespace baton {
namespace {

// FindWeight accepts no other type.
c10::ScalarType StoredTypeOf(DType dtype) {
  if (dtype == DType::kBF16) return at::kBFloat16;
  return dtype == DType::kF16 ? at::kHalf : at::kFloat;
}

class Loader {
 public:
  Loader(StageSetup& stage, c10::Device device, const std::function<void(double)>& on_progress,
         int64_t elements_total)
      : stage_(stage),
        device_(device),
        on_progress_(on_progress),
        elements_total_(elements_total) {}

  absl::StatusOr<at::Tensor> Vectors(const std::vector<std::optional<WeightSpec>>& specs) {
    std::vector<at::Tensor> parts;
    for (const std::optional<WeightSpec>& spec : specs) {
      if (!spec.has_value()) continue;
      BATON_ASSIGN_OR_RETURN(const StoredPart stored, stage_.FindVector(*spec));
      BATON_ASSIGN_OR_RETURN(const at::Tensor part, Read(stored));
      parts.push_back(part.view({stored.rows()}));
      // Not rounded: most of its digits would be those of the one.
      if (spec->adds_one) return parts[0].to(device_, at::kFloat).add(1);
    }
    return Place(parts);
  }

  // Not rounded.
  absl::StatusOr<at::Tensor> RouterBias(const std::optional<WeightSpec>& spec) {
    if (!spec.has_value()) return at::Tensor();
    BATON_ASSIGN_OR_RETURN(const StoredPart stored, stage_.FindVector(*spec));
    BATON_ASSIGN_OR_RETURN(const at::Tensor bias, Read(stored));
    return bias.view({stored.rows()}).to(device_, at::kFloat);
  }

  // [heads, nope_dim + value_dim, kv_rank]
  absl::StatusOr<at::Tensor> ByHead(const WeightSpec& spec) {
    const LatentAttention& latent = stage_.config.latent;
    BATON_ASSIGN_OR_RETURN(const at::Tensor matrix, Matrices({spec}));
    return matrix.view({-1, latent.nope_dim + latent.value_dim, latent.kv_rank});
  }

  absl::StatusOr<at::Tensor> Matrices(const std::vector<WeightSpec>& specs) {
    std::vector<at::Tensor> parts;
    for (const WeightSpec& spec : specs) {
      BATON_ASSIGN_OR_RETURN(const StoredPart stored, stage_.FindMatrix(spec));
      BATON_ASSIGN_OR_RETURN(parts.emplace_back(), stored.dtype() == DType::kF8E4M3
                                                       ? ReadScaled(spec, stored)
                                                       : Read(stored));
    }
    return Place(parts);
  }

 private:
  // In host memory: FP8 as the float32 values that it is worth.
  absl::StatusOr<at::Tensor> ReadScaled(const WeightSpec& spec, const StoredPart& stored) {
    if (!stage_.may_round && stage_.dtype != ElementType::kFloat32) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", spec.name, " is FP8 with scales, which libtorch's layers widen; say ",
          "--dtype=float32 to keep all of it, or --dtype=bfloat16 to round it"));
    }
    BATON_ASSIGN_OR_RETURN(const ScaledPart part, ScaledPart::Find(stage_.weights, spec, stored));
    at::Tensor tensor = at::empty({stored.rows(), stored.columns()}, at::kFloat);
    BATON_RETURN_IF_ERROR(part.ReadValues(
        0, stored.rows(), {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())}));
    Report(stored.ElementCount());
    return tensor;
  }

  // In host memory, as it is stored.
  absl::StatusOr<at::Tensor> Read(const StoredPart& stored) {
    at::Tensor tensor = at::empty({stored.rows(), stored.columns()}, StoredTypeOf(stored.dtype()));
    BATON_RETURN_IF_ERROR(
        stored.Read(0, {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()}));
    Report(stored.ElementCount());
    return tensor;
  }

  void Report(int64_t elements) {
    elements_done_ += elements;
    if (!on_progress_) return;
    on_progress_(static_cast<double>(elements_done_) / static_cast<double>(elements_total_));
  }

  // One below the other on the device, which holds no second copy of them; undefined if there are
  // none.
  at::Tensor Place(const std::vector<at::Tensor>& parts) const {
    if (parts.empty()) return {};
    const auto options = at::TensorOptions(device_).dtype(ScalarTypeOf(stage_.dtype));
    if (parts.size() == 1) return parts[0].to(options);
    std::vector<int64_t> shape = parts[0].sizes().vec();
    shape[0] = 0;
    for (const at::Tensor& part : parts) shape[0] += part.size(0);
    at::Tensor joined = at::empty(shape, options);
    int64_t row = 0;
    for (const at::Tensor& part : parts) {
      joined.narrow(0, row, part.size(0)).copy_(part);
      row += part.size(0);
    }
    return joined;
  }

  StageSetup& stage_;
  const c10::Device device_;
  const std::function<void(double)>& on_progress_;
  const int64_t elements_total_;
  int64_t elements_done_ = 0;
};

int64_t ElementsOf(const StageSetup& stage) {
  const ModelConfig& config = stage.config;
  const int64_t embedding = VocabularyPart(EmbeddingWeight(config), stage.shard).ElementCount();
  const int64_t total = stage.LayerElements() + (stage.first_stage() ? embedding : 0);
  if (!stage.last_stage()) return total;
  const bool shared = stage.first_stage() && config.tie_word_embeddings;
  return total + FinalNormWeight(config).ElementCount() + (shared ? 0 : embedding);
}

}  // namespace

c10::ScalarType ScalarTypeOf(ElementType type) {
  return type == ElementType::kFloat32 ? at::kFloat : at::kBFloat16;
}

absl::StatusOr<TorchWeights> LoadTorchWeights(StageSetup& stage, c10::Device device,
                                              const std::function<void(double)>& on_progress) {
  const ModelConfig& config = stage.config;
  const KvGeometry& kv = stage.kv;
  Loader loader(stage, device, on_progress, ElementsOf(stage));
  TorchWeights weights;
  if (stage.first_stage()) {
    BATON_ASSIGN_OR_RETURN(weights.embedding,
                           loader.Matrices({VocabularyPart(EmbeddingWeight(config), stage.shard)}));
  }
  for (int layer = kv.layer_begin; layer < kv.layer_end; ++layer) {
    BATON_ASSIGN_OR_RETURN(
        weights.layers.emplace_back(),
        LoadDecoderLayer<TorchLayer>(LayerWeightsOf(config, stage.shard, layer), loader));
    TorchLayer& loaded = weights.layers.back();
    loaded.stacked = StackExperts(loaded.experts);
  }
  if (!stage.last_stage()) return weights;
  BATON_ASSIGN_OR_RETURN(weights.final_norm, loader.Vectors({FinalNormWeight(config)}));
  if (stage.first_stage() && config.tie_word_embeddings) {
    weights.head = weights.embedding;
  } else {
    BATON_ASSIGN_OR_RETURN(weights.head,
                           loader.Matrices({VocabularyPart(HeadWeight(config), stage.shard)}));
  }
  return weights;
}

}  // namespace baton
