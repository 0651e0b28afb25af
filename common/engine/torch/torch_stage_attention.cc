// TorchStageModel's attention over pages, latent rows included.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index.h>

#include <cmath>

#include "common/engine/torch/torch_attention.h"
#include "common/engine/torch/torch_stage_model.h"

namespace baton {

double TorchStageModel::attention_scale() const {
  if (config_.latent.kv_rank > 0) return double{config_.attention_scale()};
  return 1 / std::sqrt(static_cast<double>(config_.head_dim));
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

at::Tensor TorchStageModel::AttendChunkOf(const TorchStep::Chunk& chunk, int layer,
                                          const at::Tensor& query, const KeyBlock& own,
                                          const at::Tensor& heads) const {
  const int64_t page = kv_.page_size;
  return AttendChunk({chunk.prefix, chunk.tokens, config_.sliding_window, page, attention_scale()},
                     query, own, [&](int64_t begin, int64_t end) {
                       const int64_t first = begin / page;
                       const int64_t count = (end + page - 1) / page - first;
                       const KeyBlock keys =
                           Gather(layer, chunk.pages.narrow(0, first, count), heads);
                       return KeyBlock{keys.first.narrow(1, 0, end - begin),
                                       keys.second.narrow(1, 0, end - begin)};
                     });
}

at::Tensor TorchStageModel::AttendAll(const TorchStep& step, int layer, const at::Tensor& query,
                                      const at::Tensor& key, const at::Tensor& value) const {
  const int64_t tokens = query.size(0);
  const int64_t kv_heads = kv_.kv_heads;
  const int64_t group = query.size(1) / kv_heads;
  const at::Tensor by_head = query.reshape({tokens, kv_heads, group, query.size(2)});
  const bool latent = config_.latent.kv_rank > 0;
  const int64_t value_dim = latent ? config_.latent.kv_rank : config_.head_dim;
  const at::Tensor all = at::empty({tokens, kv_heads, group, value_dim}, query.options());
  // A chunk's own keys and values are worth what the pages hold of them.
  const auto stored = [&](const at::Tensor& rows) {
    return rows.transpose(0, 1).to(pages_.scalar_type()).to(query.scalar_type());
  };
  for (const TorchStep::Chunk& chunk : step.chunks) {
    const at::Tensor keys = stored(key.narrow(0, chunk.row, chunk.tokens));
    const KeyBlock own = {keys, latent ? keys.narrow(-1, 0, value_dim)
                                       : stored(value.narrow(0, chunk.row, chunk.tokens))};
    const at::Tensor rows = by_head.narrow(0, chunk.row, chunk.tokens).permute({1, 2, 0, 3});
    all.narrow(0, chunk.row, chunk.tokens)
        .copy_(AttendChunkOf(chunk, layer, rows, own, step.kv_heads).permute({2, 0, 1, 3}));
  }
  if (step.decode_rows.defined()) {
    const at::Tensor rows = by_head.index_select(0, step.decode_rows);
    const at::Tensor attended = AttendDecodes(
        step, rows, [&](const at::Tensor& pages) { return Gather(layer, pages, step.kv_heads); },
        attention_scale());
    all.index_copy_(0, step.decode_rows, attended);
  }
  return all.view({tokens, kv_heads * group * value_dim});
}

}  // namespace baton
