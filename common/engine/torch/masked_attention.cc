#include "common/engine/torch/masked_attention.h"

#include <torch/version.h>

#include <cmath>

#if TORCH_VERSION_MAJOR >= 2
#include <ATen/ops/scaled_dot_product_attention.h>
#else
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>

#include <limits>
#endif

namespace baton {

at::Tensor MaskedAttention(const at::Tensor& query, const at::Tensor& keys,
                           const at::Tensor& values, const at::Tensor& seen) {
  const int64_t kv_heads = query.size(0);
  const int64_t group = query.size(1);
  const int64_t head_dim = query.size(3);
  const int64_t length = keys.size(1);
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
#if TORCH_VERSION_MAJOR >= 2
  return at::scaled_dot_product_attention(
      query, keys.unsqueeze(1).expand({kv_heads, group, length, head_dim}),
      values.unsqueeze(1).expand({kv_heads, group, length, head_dim}), seen, /*dropout_p=*/0.0,
      /*is_causal=*/false, scale);
#else
  const int64_t rows = query.size(2);
  at::Tensor scores =
      at::matmul(query.reshape({kv_heads, group * rows, head_dim}), keys.transpose(1, 2));
  scores = (scores * scale).view({kv_heads, group, rows, length}).to(at::kFloat);
  scores.masked_fill_(seen.logical_not(), -std::numeric_limits<float>::infinity());
  const at::Tensor shares = at::softmax(scores, -1).to(query.scalar_type());
  return at::matmul(shares.view({kv_heads, group * rows, length}), values)
      .view({kv_heads, group, rows, head_dim});
#endif
}

}  // namespace baton
