#include "common/engine/native/head_rows.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>

#include "common/base/status.h"

namespace baton {

// The mean over all ranks' parts, which are equally long. Where ranks share heads of keys, each
// head is counted as often as any other, which leaves their mean as it is.
absl::Status HeadPreparation::NormWhole(const LayerBlock& block, const HeadRows& rows) {
  const std::array sizes = {static_cast<size_t>(sizes_.query_size()),
                            static_cast<size_t>(sizes_.kv_size())};
  const std::array norms = {block.q_norm.data(), block.k_norm.data()};
  const size_t width = sizes[0] + 2 * sizes[1];
  const auto each = [&](const auto& apply) {
    for (size_t row = 0; row < static_cast<size_t>(rows.count); ++row) {
      float* at = rows.qkv + row * width;
      for (size_t part = 0; part < sizes.size(); at += sizes[part++]) {
        apply(std::span(at, sizes[part]), norms[part], squares_[row * sizes.size() + part]);
      }
    }
  };
  squares_.resize(static_cast<size_t>(rows.count) * sizes.size());
  each([](std::span<float> values, const float* /*norm*/, float& sum) {
    sum = std::transform_reduce(values.begin(), values.end(), 0.0f, std::plus(),
                                [](float value) { return value * value; });
  });
  if (!group_.alone()) BATON_RETURN_IF_ERROR(group_.Sum(squares_));
  each([&](std::span<float> values, const float* norm, float sum) {
    const auto count = static_cast<float>(values.size()) * static_cast<float>(group_.size());
    const float factor = 1 / std::sqrt(sum / count + static_cast<float>(sizes_.rms_norm_eps));
    for (size_t i = 0; i < values.size(); ++i) values[i] = values[i] * factor * norm[i];
  });
  return absl::OkStatus();
}

absl::Status HeadPreparation::Apply(const LayerBlock& block, const HeadRows& rows) {
  if (sizes_.qk_norm_whole) BATON_RETURN_IF_ERROR(NormWhole(block, rows));
  const auto eps = static_cast<float>(sizes_.rms_norm_eps);
  const int heads = sizes_.num_attention_heads;
  const int kv_heads = sizes_.num_key_value_heads;
  const int head_dim = sizes_.head_dim;
  const auto width =
      static_cast<size_t>(sizes_.query_size()) + size_t{2} * static_cast<size_t>(sizes_.kv_size());
  const auto half = static_cast<size_t>(sizes_.rope_dim()) / 2;
  // Keys follow queries directly, so one call turns both if it turns whole heads.
  const int together = sizes_.rotated == 0 ? heads + kv_heads : 1;
  for (size_t row = 0; row < static_cast<size_t>(rows.count); ++row) {
    float* const query = rows.qkv + row * width;
    float* const key = query + sizes_.query_size();
    if (sizes_.qk_norm && !sizes_.qk_norm_whole) {
      kernels_.rms_norm(query, block.q_norm.data(), eps, heads, head_dim, query);
      kernels_.rms_norm(key, block.k_norm.data(), eps, kv_heads, head_dim, key);
    }
    for (int head = 0; head < heads + kv_heads; head += together) {
      kernels_.rope(query + static_cast<size_t>(head) * static_cast<size_t>(head_dim),
                    rows.cos + row * half, rows.sin + row * half, together, sizes_.rope_dim());
    }
  }
  return absl::OkStatus();
}

}  // namespace baton
