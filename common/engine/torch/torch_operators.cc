#include "common/engine/torch/torch_operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <torch/version.h>

#include <limits>
#include <tuple>

#if TORCH_VERSION_MAJOR >= 2
#include <ATen/ops/scaled_dot_product_attention.h>
#else
#include <ATen/ops/matmul.h>
#endif

namespace baton {

at::Tensor MaskedAttention(const at::Tensor& query, const at::Tensor& keys,
                           const at::Tensor& values, const at::Tensor& seen, double scale) {
  const int64_t kv_heads = query.size(0);
  const int64_t group = query.size(1);
  const int64_t key_dim = query.size(3);
  const int64_t value_dim = values.size(2);
  const int64_t length = keys.size(1);
#if TORCH_VERSION_MAJOR >= 2
  return at::scaled_dot_product_attention(
      query, keys.unsqueeze(1).expand({kv_heads, group, length, key_dim}),
      values.unsqueeze(1).expand({kv_heads, group, length, value_dim}), seen, /*dropout_p=*/0.0,
      /*is_causal=*/false, scale);
#else
  const int64_t rows = query.size(2);
  at::Tensor scores =
      at::matmul(query.reshape({kv_heads, group * rows, key_dim}), keys.transpose(1, 2));
  scores = (scores * scale).view({kv_heads, group, rows, length}).to(at::kFloat);
  scores.masked_fill_(seen.logical_not(), -std::numeric_limits<float>::infinity());
  const at::Tensor shares = at::softmax(scores, -1).to(query.scalar_type());
  return at::matmul(shares.view({kv_heads, group * rows, length}), values)
      .view({kv_heads, group, rows, value_dim});
#endif
}

namespace {

// -infinity for experts of groups that are not kept.
at::Tensor KeepGroups(const Experts& experts, const at::Tensor& merits) {
  const at::Tensor groups = merits.view({merits.size(0), experts.groups, -1});
  const at::Tensor worth = experts.group_score == GroupScore::kSumOfTwo
                               ? std::get<0>(groups.topk(2, -1)).sum({-1})
                               : groups.amax({-1});
  const at::Tensor kept = std::get<1>(worth.topk(experts.groups_kept, -1));
  const at::Tensor others =
      at::zeros({merits.size(0), experts.groups}, worth.options()).scatter_(1, kept, 1).eq(0);
  return groups.masked_fill(others.unsqueeze(-1), -std::numeric_limits<float>::infinity())
      .view({merits.size(0), merits.size(1)});
}

}  // namespace

Routes RouteRows(const Experts& experts, const at::Tensor& scores, const at::Tensor& bias) {
  constexpr double kTiny = 1e-20;  // All scores of the chosen may be 0.
  const bool sigmoid = experts.score == ExpertScore::kSigmoid;
  const at::Tensor worth =
      sigmoid ? at::sigmoid(scores.to(at::kFloat)) : at::softmax(scores, -1, at::kFloat);
  at::Tensor merits = bias.defined() ? worth + bias : worth;
  if (experts.groups > experts.groups_kept) merits = KeepGroups(experts, merits);
  Routes routes;
  routes.ids = std::get<1>(merits.topk(experts.active, -1));
  routes.shares = worth.gather(-1, routes.ids);
  if (experts.normalise) {
    const at::Tensor sum = routes.shares.sum({-1}, /*keepdim=*/true);
    routes.shares = routes.shares / (sigmoid ? sum + kTiny : sum);
  }
  if (experts.scaling != 1) routes.shares = routes.shares * experts.scaling;
  return routes;
}

}  // namespace baton
