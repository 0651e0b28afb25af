// CpuStageModel's attention: projections, the KV of its tokens, and what reads it.
#include <algorithm>
#include <cstring>

#include "common/engine/native/cpu_stage_model.h"

namespace baton {

absl::Status CpuStageModel::Attention(const Batch& batch, int layer, int begin, int end,
                                      const float* x, float* projected) {
  const LayerBlock& block = BlockOf(layer);
  const float* const rows = x + Floats(begin, config_.hidden_size);
  const Turns& turns = TurnsOf(layer);
  const size_t angles = Floats(begin, turns.rotary.half_dim());
  if (config_.latent.kv_rank > 0) {
    latent_attention_.Apply(
        block,
        {batch,
         std::span(places_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
         &turns.cos[angles], &turns.sin[angles]},
        layer, rows, *pool_, scratch_.attended.data());
  } else {
    ProjectQkv(block, end - begin, rows);
    BATON_RETURN_IF_ERROR(heads_.Apply(
        block, {scratch_.qkv.data(), end - begin, &turns.cos[angles], &turns.sin[angles]}));
    StoreAndAttend(batch, layer, begin, end - begin);
  }
  block.o->Apply(scratch_.attended.data(), end - begin, projected);
  if (!block.o_bias.empty()) {
    kernels_.add_bias(block.o_bias.data(), end - begin, config_.hidden_size, projected);
  }
  return absl::OkStatus();
}

void CpuStageModel::ProjectQkv(const LayerBlock& block, int rows, const float* x) {
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  kernels_.rms_norm(x, block.input_norm.data(), eps, rows, config_.hidden_size,
                    scratch_.normed.data());
  block.qkv->Apply(scratch_.normed.data(), rows, scratch_.qkv.data());
  const int width = block.qkv->outputs();
  if (!block.qkv_bias.empty()) {
    kernels_.add_bias(block.qkv_bias.data(), rows, width, scratch_.qkv.data());
  }
}

void CpuStageModel::StoreAndAttend(const Batch& batch, int layer, int begin, int rows) {
  if (kv().element_type == ElementType::kBFloat16) {
    StoreKv<kernels::Bf16>(batch, layer, begin, rows);
    Attend(batch, layer, begin, rows, scratch_.bf16_tiles, kernels_.attention_bf16);
  } else {
    StoreKv<float>(batch, layer, begin, rows);
    Attend(batch, layer, begin, rows, scratch_.tiles, kernels_.attention);
  }
}

template <typename Element>
void CpuStageModel::StoreKv(const Batch& batch, int layer, int begin, int rows) {
  const int width = sizes_.query_size() + 2 * sizes_.kv_size();
  const auto head_dim = static_cast<size_t>(config_.head_dim);
  const int page_size = kv().page_size;
  for (int row = 0; row < rows; ++row) {
    const RowPlace place = PlaceOf(begin + row);
    const int page = batch.slices[static_cast<size_t>(place.slice)]
                         .pages[static_cast<size_t>(place.position / page_size)];
    const size_t offset = static_cast<size_t>(place.position % page_size) * head_dim;
    const float* keys = &scratch_.qkv[Floats(row, width)] + sizes_.query_size();
    const float* values = keys + sizes_.kv_size();
    for (int head = 0; head < sizes_.num_key_value_heads; ++head) {
      const size_t at = static_cast<size_t>(head) * head_dim;
      Keep(kernels_, keys + at, head_dim, pool_->Keys<Element>(page, layer, head) + offset);
      Keep(kernels_, values + at, head_dim, pool_->Values<Element>(page, layer, head) + offset);
    }
  }
}

// Every head of keys reads all sequences in one part of a loop: that of a decode step is short.
template <typename Element>
void CpuStageModel::Attend(const Batch& batch, int layer, int begin, int rows,
                           TileLists<Element>& lists,
                           void (*attention)(const kernels::AttentionArgs<Element>&)) {
  threads_.ParallelFor(sizes_.num_key_value_heads, [&](int head_begin, int head_end) {
    for (int head = head_begin; head < head_end; ++head) {
      for (int row = 0; row < rows;) {
        const RowPlace place = PlaceOf(begin + row);
        const SequenceSlice& slice = batch.slices[static_cast<size_t>(place.slice)];
        const int slice_end = slice.prefix_length + slice.token_count;
        const int tokens = std::min(slice_end - place.position, rows - row);
        attention(ArgsOf(slice, {layer, head, row, place.position, tokens}, lists));
        row += tokens;
      }
    }
  });
}

template <typename Element>
kernels::AttentionArgs<Element> CpuStageModel::ArgsOf(const SequenceSlice& slice,
                                                      const HeadRun& run,
                                                      TileLists<Element>& lists) {
  const int width = sizes_.query_size() + 2 * sizes_.kv_size();
  const int group = sizes_.num_attention_heads / sizes_.num_key_value_heads;
  const int tiles_per_page = kv().page_size / kernels::kKeyTile;
  const size_t tile_floats = Floats(kernels::kKeyTile, config_.head_dim);
  const int tiles = (run.position + run.tokens + kernels::kKeyTile - 1) / kernels::kKeyTile;
  const Element** keys = &lists.keys[static_cast<size_t>(run.head) * max_tiles_];
  const Element** values = &lists.values[static_cast<size_t>(run.head) * max_tiles_];
  for (int tile = 0; tile < tiles; ++tile) {
    const auto i = static_cast<size_t>(tile);
    const int page = slice.pages[static_cast<size_t>(tile / tiles_per_page)];
    const size_t offset = static_cast<size_t>(tile % tiles_per_page) * tile_floats;
    keys[i] = pool_->Keys<Element>(page, run.layer, run.head) + offset;
    values[i] = pool_->Values<Element>(page, run.layer, run.head) + offset;
  }
  const size_t query = Floats(int64_t{run.head} * group, config_.head_dim);
  kernels::AttentionArgs<Element> args;
  args.query = &scratch_.qkv[Floats(run.row, width) + query];
  args.output = &scratch_.attended[Floats(run.row, sizes_.query_size()) + query];
  args.query_stride = static_cast<size_t>(width);
  args.output_stride = static_cast<size_t>(sizes_.query_size());
  args.tokens = run.tokens;
  args.heads = group;
  args.head_dim = config_.head_dim;
  args.first_position = run.position;
  args.window = config_.window(run.layer);
  args.scale = attention_scale_;
  args.softcap = static_cast<float>(config_.score_softcap);
  args.kv = {keys, values};
  return args;
}

}  // namespace baton
