// TorchStageModel's attention over pages, latent rows included.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index.h>

#include <cmath>

#include "common/engine/torch/torch_attention.h"
#include "common/engine/torch/torch_fused_attention.h"
#include "common/engine/torch/torch_stage_model.h"

namespace baton {

ScoreForm TorchStageModel::score_form() const {
  if (config_.latent.kv_rank > 0) return {double{config_.attention_scale()}};
  const double divisor =
      config_.query_scalar > 0 ? config_.query_scalar : static_cast<double>(config_.head_dim);
  return {1 / std::sqrt(divisor), config_.score_softcap};
}

KeyBlock TorchStageModel::Gather(int layer, const at::Tensor& pages,
                                 const at::Tensor& heads) const {
  // One copy, in the order of the result: ids [.., 1, pages] and heads [heads, 1].
  const auto take = [&](int value) {
    return wide_pages_.select(1, layer)
        .select(1, value)
        .index({pages.unsqueeze(-2), heads.unsqueeze(-1)})
        .view(pages_.scalar_type())
        .flatten(-3, -2)
        .to(ScalarTypeOf(activation_type()));
  };
  const at::Tensor keys = take(0);
  if (kv_.planes == 1) return {keys, keys.narrow(-1, 0, config_.latent.kv_rank)};
  return {keys, take(1)};
}

at::Tensor TorchStageModel::AttentionByKernels(const TorchStep& step, int layer,
                                               const TorchLayer& weights,
                                               const at::Tensor& qkv) const {
  DeviceKernels::Placing placing;
  if (config_.qk_norm) {
    placing.q_norm = weights.q_norm;
    placing.k_norm = weights.k_norm;
  }
  placing.eps = config_.rms_norm_eps;
  placing.cos = step.cos;
  placing.sin = step.sin;
  placing.page = step.page;
  placing.slot = step.slot;
  placing.key_pages = Pages(layer, 0);
  placing.value_pages = Pages(layer, 1);
  const auto [query, key] = kernels_->PlaceHeads(qkv, placing);
  const int64_t kv_size = sizes_.kv_size();
  const at::Tensor value =
      qkv.narrow(1, qkv.size(1) - kv_size, kv_size).view({qkv.size(0), kv_.kv_heads, kv_.head_dim});
  return AttendAll(step, layer, query, key, value);
}

at::Tensor TorchStageModel::AttendChunkOf(const TorchStep::Chunk& chunk, int layer,
                                          const at::Tensor& query, const KeyBlock& own,
                                          const at::Tensor& heads) const {
  const int64_t page = kv_.page_size;
  const ChunkShape shape = {chunk.prefix, chunk.tokens, config_.window(kv_.layer_begin + layer),
                            page, score_form()};
  const auto prefix = [&](int64_t begin, int64_t end) {
    const int64_t first = begin / page;
    const int64_t count = (end + page - 1) / page - first;
    const KeyBlock keys = Gather(layer, chunk.pages.narrow(0, first, count), heads);
    return KeyBlock{keys.first.narrow(1, 0, end - begin), keys.second.narrow(1, 0, end - begin)};
  };
  if (FusedAttentionFits(query, own.second.size(-1), shape.form)) {
    return AttendFused(shape, query, own, prefix, kernels_.get());
  }
  const int64_t group = query.size(1) / kv_.kv_heads;
  const at::Tensor by_head =
      query.reshape({chunk.tokens, kv_.kv_heads, group, query.size(2)}).permute({1, 2, 0, 3});
  return AttendChunk(shape, by_head, own, prefix).permute({2, 0, 1, 3}).flatten(1, 2);
}

at::Tensor TorchStageModel::AttendAll(const TorchStep& step, int layer, const at::Tensor& query,
                                      const at::Tensor& key, const at::Tensor& value) const {
  const int64_t tokens = query.size(0);
  const int64_t heads = query.size(1);
  const bool latent = config_.latent.kv_rank > 0;
  const int64_t value_dim = latent ? config_.latent.kv_rank : config_.head_dim;
  // A chunk's own keys and values are worth what the pages hold of them.
  const auto stored = [&](const at::Tensor& rows) {
    return rows.transpose(0, 1).to(pages_.scalar_type()).to(query.scalar_type());
  };
  const auto attend_chunk = [&](const TorchStep::Chunk& chunk) {
    const at::Tensor keys = stored(key.narrow(0, chunk.row, chunk.tokens));
    const KeyBlock own = {keys, latent ? keys.narrow(-1, 0, value_dim)
                                       : stored(value.narrow(0, chunk.row, chunk.tokens))};
    return AttendChunkOf(chunk, layer, query.narrow(0, chunk.row, chunk.tokens), own,
                         step.kv_heads);
  };
  const bool decodes = step.decode_rows.defined();
  if (!decodes && step.chunks.size() == 1) {
    return attend_chunk(step.chunks[0]).reshape({tokens, heads * value_dim});
  }
  if (decodes && step.chunks.empty() && kernels_attend_) {
    return AttendDecodeRows(step, layer, query).view({tokens, heads * value_dim});
  }
  const at::Tensor all = at::empty({tokens, heads, value_dim}, query.options());
  for (const TorchStep::Chunk& chunk : step.chunks) {
    all.narrow(0, chunk.row, chunk.tokens).copy_(attend_chunk(chunk));
  }
  if (decodes) {
    const at::Tensor rows = query.index_select(0, step.decode_rows);
    all.index_copy_(0, step.decode_rows, AttendDecodeRows(step, layer, rows));
  }
  return all.view({tokens, heads * value_dim});
}

at::Tensor TorchStageModel::AttendDecodeRows(const TorchStep& step, int layer,
                                             const at::Tensor& query) const {
  if (kernels_attend_) {
    return kernels_->AttendPages(query, step.paged, Pages(layer, 0), Pages(layer, 1),
                                 score_form().scale, config_.sliding_window);
  }
  const int64_t kv_heads = kv_.kv_heads;
  const at::Tensor by_group =
      query.view({query.size(0), kv_heads, query.size(1) / kv_heads, query.size(2)});
  const at::Tensor attended = AttendDecodes(
      step, by_group, [&](const at::Tensor& pages) { return Gather(layer, pages, step.kv_heads); },
      score_form());
  return attended.flatten(1, 2);
}

}  // namespace baton
