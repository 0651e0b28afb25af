#include "common/engine/native/latent_attention.h"

#include <algorithm>

#include "common/engine/requirements.h"

namespace baton {
namespace {

constexpr auto kLowRankEps = static_cast<float>(LatentAttention::kNormEps);

// Rows from `first` on that are of one slice.
int RunOf(std::span<const RowPlace> places, int first) {
  int end = first + 1;
  while (end < static_cast<int>(places.size()) &&
         places[static_cast<size_t>(end)].slice == places[static_cast<size_t>(first)].slice) {
    ++end;
  }
  return end - first;
}

}  // namespace

AbsorbedAttention::AbsorbedAttention(const kernels::KernelTable& kernels, const ModelConfig& sizes,
                                     ThreadPool& threads)
    : kernels_(kernels),
      sizes_(sizes),
      latent_(sizes.latent),
      threads_(threads),
      query_columns_(sizes.num_attention_heads * latent_.key_dim()),
      scale_(sizes.attention_scale()) {}

void AbsorbedAttention::Allocate() {
  normed_.resize(Floats(kRowBlock, sizes_.hidden_size));
  compressed_.resize(Floats(kRowBlock, Width()));
  low_rank_.resize(Floats(kRowBlock, latent_.q_rank));
  queries_.resize(Floats(kRowBlock, query_columns_));
  paired_.resize(static_cast<size_t>(latent_.rope_dim));
  const auto tiles = static_cast<size_t>(
      (int64_t{sizes_.max_position_embeddings} + kernels::kKeyTile - 1) / kernels::kKeyTile);
  scratch_.resize(static_cast<size_t>(threads_.threads()));
  for (Scratch& scratch : scratch_) {
    scratch.gathered.resize(Floats(kRowBlock, std::max(latent_.nope_dim, latent_.kv_rank)));
    scratch.query.resize(Floats(kLatentRows, latent_.row()));
    scratch.output.resize(Floats(kLatentRows, latent_.kv_rank));
    scratch.tiles.resize(tiles);
  }
}

void AbsorbedAttention::Apply(const LayerBlock& block, const LatentRows& rows, int layer,
                              const float* x, KvPool& pool, float* attended) {
  Project(block, rows, x);
  const bool bf16 = pool.geometry().element_type == ElementType::kBFloat16;
  if (bf16) {
    Store<kernels::Bf16>(rows, layer, pool);
  } else {
    Store<float>(rows, layer, pool);
  }
  const int parts = threads_.threads();
  const int heads = sizes_.num_attention_heads;
  threads_.ParallelFor(parts, [&](int begin, int end) {
    for (int part = begin; part < end; ++part) {
      const IndexRange own = {part * heads / parts, (part + 1) * heads / parts};
      Scratch& scratch = scratch_[static_cast<size_t>(part)];
      if (bf16) {
        AttendHeads<kernels::Bf16>(block, rows, layer, pool, own, scratch, kernels_.attention_bf16,
                                   attended);
      } else {
        AttendHeads<float>(block, rows, layer, pool, own, scratch, kernels_.attention, attended);
      }
    }
  });
}

void AbsorbedAttention::Project(const LayerBlock& block, const LatentRows& rows, const float* x) {
  kernels_.rms_norm(x, block.input_norm.data(), static_cast<float>(sizes_.rms_norm_eps),
                    rows.size(), sizes_.hidden_size, normed_.data());
  block.qkv->Apply(normed_.data(), rows.size(), compressed_.data());
  for (int row = 0; row < rows.size(); ++row) {
    float* const query = &compressed_[Floats(row, Width())];
    float* const cached = query + BeforeRow();
    kernels_.rms_norm(cached, block.k_norm.data(), kLowRankEps, 1, latent_.kv_rank, cached);
    Rotate(cached + latent_.kv_rank, rows, row);
    if (latent_.q_rank > 0) {
      kernels_.rms_norm(query, block.q_norm.data(), kLowRankEps, 1, latent_.q_rank,
                        &low_rank_[Floats(row, latent_.q_rank)]);
    } else {
      std::copy_n(query, query_columns_, &queries_[Floats(row, query_columns_)]);
    }
  }
  if (latent_.q_rank > 0) block.q_b->Apply(low_rank_.data(), rows.size(), queries_.data());
  for (int row = 0; row < rows.size(); ++row) {
    float* const query = &queries_[Floats(row, query_columns_)];
    for (int head = 0; head < sizes_.num_attention_heads; ++head) {
      Rotate(query + Floats(head, latent_.key_dim()) + latent_.nope_dim, rows, row);
    }
  }
}

// The kernel pairs halves. Scores don't depend on the order of the elements, if queries and rows
// have the same.
void AbsorbedAttention::Rotate(float* x, const LatentRows& rows, int row) {
  const auto half = static_cast<size_t>(latent_.rope_dim / 2);
  if (latent_.interleaved) {
    for (size_t i = 0; i < half; ++i) {
      paired_[i] = x[2 * i];
      paired_[half + i] = x[2 * i + 1];
    }
    std::ranges::copy(paired_, x);
  }
  const size_t angles = Floats(row, latent_.rope_dim / 2);
  kernels_.rope(x, rows.cos + angles, rows.sin + angles, 1, latent_.rope_dim);
}

template <typename Element>
void AbsorbedAttention::Store(const LatentRows& rows, int layer, KvPool& pool) {
  const int page_size = pool.geometry().page_size;
  for (int row = 0; row < rows.size(); ++row) {
    const RowPlace place = rows.places[static_cast<size_t>(row)];
    const int page = rows.batch.slices[static_cast<size_t>(place.slice)]
                         .pages[static_cast<size_t>(place.position / page_size)];
    Keep(
        kernels_, &compressed_[Floats(row, Width())] + BeforeRow(),
        static_cast<size_t>(latent_.row()),
        pool.Plane<Element>(page, layer, 0, 0) + Floats(place.position % page_size, latent_.row()));
  }
}

// As many heads at a time as the buffers hold: they share the reading of the cached rows.
template <typename Element>
void AbsorbedAttention::AttendHeads(const LayerBlock& block, const LatentRows& rows, int layer,
                                    KvPool& pool, IndexRange heads, Scratch& scratch,
                                    void (*attention)(const kernels::AttentionArgs<Element>&),
                                    float* attended) {
  const int together = std::max(1, kLatentRows / rows.size());
  for (int first = heads.begin; first < heads.end; first += together) {
    const IndexRange group = {first, std::min(first + together, heads.end)};
    for (int head = group.begin; head < group.end; ++head) {
      AbsorbQueries(*block.kv_b.keys, rows.size(), head, group, scratch);
    }
    for (int row = 0; row < rows.size();) {
      const int tokens = RunOf(rows.places, row);
      AttendRun<Element>(rows, row, tokens, layer, pool, group.size(), scratch, attention);
      row += tokens;
    }
    for (int head = group.begin; head < group.end; ++head) {
      ExpandValues(*block.kv_b.values, rows.size(), head, group, scratch, attended);
    }
  }
}

void AbsorbedAttention::AbsorbQueries(const HeadLinear& keys, int rows, int head, IndexRange group,
                                      Scratch& scratch) {
  const size_t stride = Floats(group.size(), latent_.row());
  float* const out = &scratch.query[Floats(head - group.begin, latent_.row())];
  for (int row = 0; row < rows; ++row) {
    const float* const query =
        &queries_[Floats(row, query_columns_)] + Floats(head, latent_.key_dim());
    std::copy_n(query, latent_.nope_dim, &scratch.gathered[Floats(row, latent_.nope_dim)]);
    std::copy_n(query + latent_.nope_dim, latent_.rope_dim,
                out + static_cast<size_t>(row) * stride + latent_.kv_rank);
  }
  keys.Apply(head, scratch.gathered.data(), rows, out, stride);
}

template <typename Element>
void AbsorbedAttention::AttendRun(const LatentRows& rows, int row, int tokens, int layer,
                                  KvPool& pool, int heads, Scratch& scratch,
                                  void (*attention)(const kernels::AttentionArgs<Element>&)) {
  const RowPlace place = rows.places[static_cast<size_t>(row)];
  const SequenceSlice& slice = rows.batch.slices[static_cast<size_t>(place.slice)];
  const int tiles_per_page = pool.geometry().page_size / kernels::kKeyTile;
  const int tiles = (place.position + tokens + kernels::kKeyTile - 1) / kernels::kKeyTile;
  const auto list = reinterpret_cast<const Element**>(scratch.tiles.data());
  for (int tile = 0; tile < tiles; ++tile) {
    const int page = slice.pages[static_cast<size_t>(tile / tiles_per_page)];
    list[tile] = pool.Plane<Element>(page, layer, 0, 0) +
                 Floats(tile % tiles_per_page, int64_t{kernels::kKeyTile} * latent_.row());
  }
  kernels::AttentionArgs<Element> args;
  args.query_stride = Floats(heads, latent_.row());
  args.output_stride = Floats(heads, latent_.kv_rank);
  args.query = &scratch.query[static_cast<size_t>(row) * args.query_stride];
  args.output = &scratch.output[static_cast<size_t>(row) * args.output_stride];
  args.tokens = tokens;
  args.heads = heads;
  args.head_dim = latent_.row();
  args.value_dim = latent_.kv_rank;
  args.first_position = place.position;
  args.scale = scale_;
  args.kv = {list, list};
  attention(args);
}

void AbsorbedAttention::ExpandValues(const HeadLinear& values, int rows, int head, IndexRange group,
                                     Scratch& scratch, float* attended) {
  const float* const from = &scratch.output[Floats(head - group.begin, latent_.kv_rank)];
  const size_t stride = Floats(group.size(), latent_.kv_rank);
  for (int row = 0; row < rows; ++row) {
    std::copy_n(from + static_cast<size_t>(row) * stride, latent_.kv_rank,
                &scratch.gathered[Floats(row, latent_.kv_rank)]);
  }
  values.Apply(head, scratch.gathered.data(), rows, attended + Floats(head, latent_.value_dim),
               static_cast<size_t>(sizes_.attended_size()));
}

}  // namespace baton
