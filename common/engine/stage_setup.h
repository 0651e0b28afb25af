// What a range of layers will be, known before a weight is read: the same for every stage model,
// whatever computes it. Needs no torch.
#ifndef COMMON_ENGINE_STAGE_SETUP_H_
#define COMMON_ENGINE_STAGE_SETUP_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/engine/executor_options.h"
#include "common/engine/kv_geometry.h"
#include "common/model/model_config.h"
#include "common/model/model_shard.h"
#include "common/model/safetensors.h"
#include "common/model/weight_names.h"
#include "common/model/weight_part.h"
#include "common/types/element_type.h"

namespace baton {

struct StageSetup {
  ModelConfig config;  // Of the whole model.
  ModelShard shard;    // What of it this rank computes.
  WeightReader weights;
  ElementType dtype;  // How the weights' values are rounded, if at all.
  // Whether a matrix that is stored in another type than bfloat16 may be rounded to it: somebody
  // asked for it, and it did not follow from the checkpoint.
  bool may_round;
  KvGeometry kv;

  bool first_stage() const { return kv.layer_begin == 0; }
  bool last_stage() const { return kv.layer_end == config.num_hidden_layers; }

  // Of this rank's part of the layers' weights, without embeddings, final norm and head.
  int64_t LayerElements() const;

  // The spec's part of a matrix, or of a vector. InvalidArgument, naming the matrix, where it would
  // have to be rounded and must not; otherwise FindWeight's errors.
  absl::StatusOr<StoredPart> FindMatrix(const WeightSpec& spec);
  absl::StatusOr<StoredPart> FindVector(const WeightSpec& spec);
};

// Checks the options' sizes and layers against the model. Nothing is allocated by them, and no
// shapes but the embeddings' are compared with tensors yet.
absl::StatusOr<StageSetup> SetUpStage(const ExecutorOptions& options);

}  // namespace baton

#endif  // COMMON_ENGINE_STAGE_SETUP_H_
