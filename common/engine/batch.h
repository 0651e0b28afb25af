// What every stage model demands of a Batch before it touches memory by it.
#ifndef COMMON_ENGINE_BATCH_H_
#define COMMON_ENGINE_BATCH_H_

#include <cstddef>

#include "absl/status/status.h"
#include "common/engine/kv_geometry.h"
#include "common/engine/stage_model.h"
#include "common/model/model_config.h"

namespace baton {

// The buffers that Forward was given.
struct ForwardBuffers {
  const TensorView& in;
  const TensorView& out;
  ElementType activation_type;  // That they must have,
  int activation_columns;       // and these.
  size_t logits;                // Floats.
  bool tells_logits = true;     // Whether the wanted ones come out here.
};

// InvalidArgument naming the slice and the value that is wrong; see StageModel::Forward.
absl::Status ValidateBatch(const Batch& batch, const ForwardBuffers& buffers,
                           const ModelConfig& config, const KvGeometry& kv);

}  // namespace baton

#endif  // COMMON_ENGINE_BATCH_H_
