#include "common/engine/weights/stage_setup.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/engine/kernels/kernels.h"
#include "common/engine/requirements.h"
#include "common/model/weight_part.h"

namespace baton {

absl::StatusOr<StagePart> PartOf(const ExecutorOptions& options, const ModelConfig& config) {
  const int layer_end = options.layer_end < 0 ? config.num_hidden_layers : options.layer_end;
  BATON_RETURN_IF_ERROR(ValidateLayerRange(config, options.layer_begin, layer_end));
  BATON_RETURN_IF_ERROR(CheckExecutorSizes(options.page_size, options.threads));
  if (options.page_count <= 0) {
    return InvalidField("page_count", absl::StrCat("must be positive, is ", options.page_count));
  }
  BATON_ASSIGN_OR_RETURN(ModelShard shard, ShardModel(config, options.tensor_rank));
  if (options.slice_activations) {
    BATON_RETURN_IF_ERROR(CheckActivationSlices(config, shard.rank.size));
  }
  KvGeometry kv;
  kv.layer_begin = options.layer_begin;
  kv.layer_end = layer_end;
  kv.head_begin = shard.kv_heads.begin;
  kv.kv_heads = shard.kv_heads.size();
  kv.head_dim = shard.sizes.head_dim;
  kv.planes = shard.sizes.kv_planes;
  kv.page_size = options.page_size;
  kv.page_count = options.page_count;
  return StagePart{std::move(shard), kv};
}

absl::StatusOr<StageSetup> SetUpStage(const ExecutorOptions& options) {
  BATON_ASSIGN_OR_RETURN(ModelConfig config,
                         LoadModelConfig(options.model_path, options.context_tokens));
  BATON_ASSIGN_OR_RETURN(StagePart part, PartOf(options, config));
  BATON_ASSIGN_OR_RETURN(WeightReader weights, WeightReader::Open(options.model_path));
  ElementType dtype{};
  if (options.dtype.has_value()) {
    dtype = *options.dtype;
  } else {
    BATON_ASSIGN_OR_RETURN(dtype, StoredWeightType(weights, config));
  }
  part.kv.element_type = options.kv_dtype.value_or(dtype);
  return StageSetup{std::move(config),         std::move(part.shard),
                    std::move(weights),        dtype,
                    options.dtype.has_value(), part.kv};
}

float StageSetup::EmbeddingScale() const {
  if (!config.scaled_embeddings) return 1;
  float scale = std::sqrt(static_cast<float>(config.hidden_size));
  if (dtype == ElementType::kBFloat16) kernels::FindKernels("")->round_to_bf16(&scale, 1);
  return scale;
}

int64_t StageSetup::LayerElements() const {
  int64_t total = 0;
  for (int layer = kv.layer_begin; layer < kv.layer_end; ++layer) {
    for (const WeightSpec& spec : LayerWeightsOf(config, shard, layer).All()) {
      total += spec.ElementCount();
    }
  }
  return total;
}

absl::StatusOr<StoredPart> StageSetup::FindMatrix(const WeightSpec& spec) {
  BATON_ASSIGN_OR_RETURN(const StoredTensor tensor, FindWeight(weights, spec));
  if (!may_round) BATON_RETURN_IF_ERROR(CheckStoredAs(spec, tensor, dtype));
  return StoredPart(spec, tensor);
}

absl::StatusOr<StoredPart> StageSetup::FindVector(const WeightSpec& spec) {
  BATON_ASSIGN_OR_RETURN(const StoredTensor tensor, FindWeight(weights, spec));
  return StoredPart(spec, tensor);
}

}  // namespace baton
