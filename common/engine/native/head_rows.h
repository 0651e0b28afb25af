// What becomes of queries and keys between their projection and attention: norms and turns.
#ifndef COMMON_ENGINE_NATIVE_HEAD_ROWS_H_
#define COMMON_ENGINE_NATIVE_HEAD_ROWS_H_

#include "common/engine/kernels/kernels.h"
#include "common/engine/weights/stage_weights.h"
#include "common/model/model_config.h"

namespace baton {

struct HeadRows {
  float* qkv;  // [count, query_size + 2 * kv_size]
  int count;
  const float* cos;  // [count, rope_dim / 2]
  const float* sin;
};

class HeadPreparation {
 public:
  // `sizes` are this rank's.
  HeadPreparation(const kernels::KernelTable& kernels, const ModelConfig& sizes)
      : kernels_(kernels), sizes_(sizes) {}

  // Normalises the queries and keys of each head if the model does, and turns them.
  void Apply(const LayerBlock& block, const HeadRows& rows) const;

 private:
  const kernels::KernelTable& kernels_;
  const ModelConfig& sizes_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_NATIVE_HEAD_ROWS_H_
