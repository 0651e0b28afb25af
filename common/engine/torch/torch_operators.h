// Operators of the layers that need no stage: attention with the operator of the libtorch in use,
// and the routes to experts. Part of the plugin.
#ifndef COMMON_ENGINE_TORCH_TORCH_OPERATORS_H_
#define COMMON_ENGINE_TORCH_TORCH_OPERATORS_H_

#include <ATen/core/Tensor.h>

#include "common/model/model_config.h"

namespace baton {

// Attention of a few query rows over a sequence's keys and values: the only code that differs
// between versions (1.13 to 2.15 are tested). `query` is [kv_heads, group, rows, key_dim]; `keys`
// and `values` are [kv_heads, length, key_dim or value_dim] of the same type; `seen` is [rows,
// length], true where a row may attend to a position. Returns [kv_heads, group, rows, value_dim].
at::Tensor MaskedAttention(const at::Tensor& query, const at::Tensor& keys,
                           const at::Tensor& values, const at::Tensor& seen, double scale);

// The experts that rows go to, and the weights of what they add.
struct Routes {
  at::Tensor shares;  // [rows, active] float32
  at::Tensor ids;     // The same.
};

// `scores` is [rows, experts]; `bias`, [experts] float32, is undefined if the router has none.
Routes RouteRows(const Experts& experts, const at::Tensor& scores, const at::Tensor& bias);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_TORCH_OPERATORS_H_
