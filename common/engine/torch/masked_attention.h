// Attention of a few query rows over a sequence's keys and values, with the operator of the
// libtorch in use: the only code that differs between versions (1.13 to 2.15 are tested). Part of
// the plugin.
#ifndef COMMON_ENGINE_TORCH_MASKED_ATTENTION_H_
#define COMMON_ENGINE_TORCH_MASKED_ATTENTION_H_

#include <ATen/core/Tensor.h>

namespace baton {

// `query` is [kv_heads, group, rows, head_dim]; `keys` and `values` are [kv_heads, length,
// head_dim] of the same type; `seen` is [rows, length], true where a row may attend to a position.
// Returns [kv_heads, group, rows, head_dim].
at::Tensor MaskedAttention(const at::Tensor& query, const at::Tensor& keys,
                           const at::Tensor& values, const at::Tensor& seen);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_MASKED_ATTENTION_H_
