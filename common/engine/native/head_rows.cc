#include "common/engine/native/head_rows.h"

#include <cstddef>

namespace baton {

void HeadPreparation::Apply(const LayerBlock& block, const HeadRows& rows) const {
  const auto eps = static_cast<float>(sizes_.rms_norm_eps);
  const int heads = sizes_.num_attention_heads;
  const int kv_heads = sizes_.num_key_value_heads;
  const int head_dim = sizes_.head_dim;
  const auto width = static_cast<size_t>(sizes_.query_size()) + 2 * sizes_.kv_size();
  const auto half = static_cast<size_t>(sizes_.rope_dim()) / 2;
  // Keys follow queries directly, so one call turns both if it turns whole heads.
  const int together = sizes_.rotated == 0 ? heads + kv_heads : 1;
  for (size_t row = 0; row < static_cast<size_t>(rows.count); ++row) {
    float* const query = rows.qkv + row * width;
    float* const key = query + sizes_.query_size();
    if (!block.q_norm.empty()) {
      kernels_.rms_norm(query, block.q_norm.data(), eps, heads, head_dim, query);
      kernels_.rms_norm(key, block.k_norm.data(), eps, kv_heads, head_dim, key);
    }
    for (int head = 0; head < heads + kv_heads; head += together) {
      kernels_.rope(query + head * head_dim, rows.cos + row * half, rows.sin + row * half, together,
                    sizes_.rope_dim());
    }
  }
}

}  // namespace baton
