#include "common/engine/torch/torch_fused_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <torch/version.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "common/engine/requirements.h"

#if TORCH_VERSION_MAJOR >= 2
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#endif

namespace baton {

std::vector<std::pair<int64_t, int64_t>> CutPrefix(int64_t prefix, bool by_cudnn) {
  std::vector<std::pair<int64_t, int64_t>> blocks;
  int64_t size = kTorchFlashKeys;
  for (int64_t begin = 0; begin < prefix; begin = blocks.back().second) {
    const int64_t left = prefix - begin;
    while (by_cudnn && size > left && size >= 2 * kLeastCudnnKeys) size /= 2;
    blocks.emplace_back(begin, begin + std::min(size, left));
  }
  return blocks;
}

int64_t PaddedRows(int64_t tokens) {
  constexpr int64_t kLeast = 1024;
  if (tokens < kLeast) return 0;
  const int64_t step = tokens < 4 * kLeast ? kLeast / 4 : kLeast;
  return (tokens + step - 1) / step * step;
}

#if TORCH_VERSION_MAJOR >= 2

namespace {

using Part = DeviceKernels::Part;

// [kv_heads, tokens, dim] as [1, tokens, kv_heads, dim].
at::Tensor ByToken(const at::Tensor& keys) { return keys.transpose(0, 1).unsqueeze(0); }

// Rows that see all keys, or with `causal` those up to their own place, counted from the last key.
Part ByFlash(const at::Tensor& query, const KeyBlock& keys, bool causal, int64_t window,
             double scale) {
  const auto sides = [&](int64_t left) {
    return window > 0 ? std::optional<c10::SymInt>(left) : std::nullopt;
  };
  const auto given = at::_flash_attention_forward_symint(
      query.unsqueeze(0), ByToken(keys.first), ByToken(keys.second), /*cum_seq_q=*/std::nullopt,
      /*cum_seq_k=*/std::nullopt, query.size(0), keys.first.size(1), /*dropout_p=*/0.0, causal,
      /*return_debug_mask=*/false, scale, sides(window - 1), sides(0));
  return {std::get<0>(given).squeeze(0), std::get<1>(given).squeeze(0)};
}

// `query` may have more rows than the result. With `causal` there are as many keys as rows.
Part ByCudnn(const at::Tensor& query, const KeyBlock& keys, bool causal, double scale,
             int64_t tokens) {
  const auto given = at::_scaled_dot_product_cudnn_attention(
      query.transpose(0, 1).unsqueeze(0), keys.first.unsqueeze(0), keys.second.unsqueeze(0),
      std::nullopt, /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, causal,
      /*return_debug_mask=*/false, scale);
  return {std::get<0>(given).squeeze(0).transpose(0, 1).narrow(0, 0, tokens).contiguous(),
          std::get<1>(given).squeeze(0).squeeze(-1).narrow(1, 0, tokens).contiguous()};
}

// Zeros are added at the end.
at::Tensor Padded(const at::Tensor& tensor, int64_t dimension, int64_t size) {
  if (tensor.size(dimension) == size) return tensor;
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape[static_cast<size_t>(dimension)] = size - tensor.size(dimension);
  return at::cat({tensor, at::zeros(shape, tensor.options())}, dimension);
}

void Add(const DeviceKernels* kernels, const Part& more, Part& sum) {
  if (kernels != nullptr && kernels->fits_heads()) return kernels->Merge(more, sum);
  const auto by_row = [](const at::Tensor& log_sum) { return log_sum.t().unsqueeze(-1); };
  Attended both = {sum.output, by_row(sum.log_sum)};
  Merge({more.output, by_row(more.log_sum)}, both);
  sum = {both.output, both.log_sum.squeeze(-1).t()};
}

// Blocks of a window's keys, and the chunk's own, at once: a window is short.
at::Tensor WithinWindow(const ChunkShape& shape, const at::Tensor& query, const KeyBlock& own,
                        const GetKeys& prefix) {
  const int64_t first = shape.first_key();
  if (first >= shape.prefix)
    return ByFlash(query, own, true, shape.window, shape.form.scale).output;
  const KeyBlock before = prefix(first, shape.prefix);
  const KeyBlock all = {at::cat({before.first, own.first}, 1),
                        at::cat({before.second, own.second}, 1)};
  return ByFlash(query, all, /*causal=*/true, shape.window, shape.form.scale).output;
}

}  // namespace

// FlashAttention 2 takes its own types, one width of keys and values, and reads groups as they are.
bool FusedAttentionFits(const at::Tensor& query, int64_t value_dim, const ScoreForm& form) {
  constexpr int64_t kWidest = 256;
  return query.is_cuda() && query.scalar_type() == at::kBFloat16 && query.size(-1) == value_dim &&
         value_dim <= kWidest && value_dim % 8 == 0 && form.softcap == 0;
}

at::Tensor AttendFused(const ChunkShape& shape, const at::Tensor& query, const KeyBlock& own,
                       const GetKeys& prefix, const DeviceKernels* kernels) {
  if (shape.window > 0) return WithinWindow(shape, query, own, prefix);
  const int64_t padded = kernels != nullptr && kernels->has_cudnn() ? PaddedRows(shape.tokens) : 0;
  const at::Tensor rows = padded > 0 ? Padded(query, 0, padded) : query;
  Part sum = padded > 0
                 ? ByCudnn(rows, {Padded(own.first, 1, padded), Padded(own.second, 1, padded)},
                           /*causal=*/true, shape.form.scale, shape.tokens)
                 : ByFlash(query, own, /*causal=*/true, 0, shape.form.scale);
  for (const auto& [begin, end] : CutPrefix(shape.prefix, padded > 0)) {
    const KeyBlock keys = prefix(begin, end);
    const bool by_cudnn = padded > 0 && end - begin >= kLeastCudnnKeys;
    Add(kernels,
        by_cudnn ? ByCudnn(rows, keys, /*causal=*/false, shape.form.scale, shape.tokens)
                 : ByFlash(query, keys, /*causal=*/false, 0, shape.form.scale),
        sum);
  }
  return sum.output.to(query.scalar_type());
}

#else

bool FusedAttentionFits(const at::Tensor& /*query*/, int64_t /*value_dim*/,
                        const ScoreForm& /*form*/) {
  return false;
}

at::Tensor AttendFused(const ChunkShape& /*shape*/, const at::Tensor& query,
                       const KeyBlock& /*own*/, const GetKeys& /*prefix*/,
                       const DeviceKernels* /*kernels*/) {
  TORCH_CHECK(false, "this libtorch has no fused attention");
  return query;
}

#endif

}  // namespace baton
