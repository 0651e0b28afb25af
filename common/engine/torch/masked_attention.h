// Attention of a few query rows over a sequence's keys and values, by what the libtorch at hand has
// for it: the one place where its versions differ (1.13 to 2.15 are tried). Part of the plugin.
#ifndef COMMON_ENGINE_TORCH_MASKED_ATTENTION_H_
#define COMMON_ENGINE_TORCH_MASKED_ATTENTION_H_

#include <ATen/core/Tensor.h>

namespace baton {

// `query` is [kv_heads, group, rows, head_dim], `keys` and `values` are [kv_heads, length,
// head_dim] of the same type; `seen` is [rows, length], true where a row sees a position. Gives
// [kv_heads, group, rows, head_dim].
at::Tensor MaskedAttention(const at::Tensor& query, const at::Tensor& keys,
                           const at::Tensor& values, const at::Tensor& seen);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_MASKED_ATTENTION_H_
