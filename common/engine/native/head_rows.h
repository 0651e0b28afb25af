// What becomes of queries and keys between their projection and attention: norms and turns.
#ifndef COMMON_ENGINE_NATIVE_HEAD_ROWS_H_
#define COMMON_ENGINE_NATIVE_HEAD_ROWS_H_

#include <vector>

#include "absl/status/status.h"
#include "common/engine/kernels/kernels.h"
#include "common/engine/ranks/rank_group.h"
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
  HeadPreparation(const kernels::KernelTable& kernels, const ModelConfig& sizes, RankGroup& group)
      : kernels_(kernels), sizes_(sizes), group_(group) {}

  // Normalises queries and keys if the model does, and turns them. Fails only where ranks sum: over
  // whole rows of several ranks.
  absl::Status Apply(const LayerBlock& block, const HeadRows& rows);

 private:
  absl::Status NormWhole(const LayerBlock& block, const HeadRows& rows);

  const kernels::KernelTable& kernels_;
  const ModelConfig& sizes_;
  RankGroup& group_;
  std::vector<float> squares_;  // [rows, 2]: sums over the queries and over the keys.
};

}  // namespace baton

#endif  // COMMON_ENGINE_NATIVE_HEAD_ROWS_H_
