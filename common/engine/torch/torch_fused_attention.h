// Attention of a chunk on a GPU by operators that take a whole block: cuDNN's where there is one,
// FlashAttention 2 for the rest. Part of the plugin.
#ifndef COMMON_ENGINE_TORCH_TORCH_FUSED_ATTENTION_H_
#define COMMON_ENGINE_TORCH_TORCH_FUSED_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "common/engine/torch/kernels/device_kernels.h"
#include "common/engine/torch/torch_attention.h"

namespace baton {

// Whether the operators take rows of these heads: on a GPU, bfloat16, keys and values of one width,
// no cap.
bool FusedAttentionFits(const at::Tensor& query, int64_t value_dim, const ScoreForm& form);

// As AttendChunk, but `query` and the result are [tokens, heads, head_dim]; `own` is [kv_heads,
// tokens, head_dim]. `kernels` may be null.
at::Tensor AttendFused(const ChunkShape& shape, const at::Tensor& query, const KeyBlock& own,
                       const GetKeys& prefix, const DeviceKernels* kernels);

// How a prefix is cut into blocks: [begin, end). cuDNN builds a plan for each size of its operands,
// which takes it a tenth of a second, so that with it (`by_cudnn`) sizes are powers of two; what is
// left of less than kLeastCudnnKeys is one block.
std::vector<std::pair<int64_t, int64_t>> CutPrefix(int64_t prefix, bool by_cudnn);

// The rows that a chunk is padded to for cuDNN, for the same reason; 0: too few for it.
int64_t PaddedRows(int64_t tokens);

inline constexpr int64_t kLeastCudnnKeys = 2048;

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_TORCH_FUSED_ATTENTION_H_
