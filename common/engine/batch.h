// What every executor demands of a Batch before it touches memory by it.
#ifndef COMMON_ENGINE_BATCH_H_
#define COMMON_ENGINE_BATCH_H_

#include <cstddef>

#include "absl/status/status.h"
#include "common/engine/executor.h"
#include "common/model/model_config.h"

namespace baton {

// Sizes, in floats, of the buffers that Forward was given.
struct ForwardBuffers {
  size_t in;
  size_t out;
  size_t logits;
};

// InvalidArgument naming the slice and the value that is wrong; see Executor::Forward.
absl::Status ValidateBatch(const Batch& batch, const ForwardBuffers& buffers,
                           const ModelConfig& config, const KvGeometry& kv);

}  // namespace baton

#endif  // COMMON_ENGINE_BATCH_H_
