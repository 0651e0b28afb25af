// DeepSeek's attention over latent rows (model_config.h) on the CPU.
//
// Decode and prefill both compute the absorbed form: a head's query times its key matrix is
// compared with the cached rows themselves, and its value matrix is applied to their weighted sum.
// The KV of a prefix is never expanded. Rejected for prefill: expanding keys and values, which from
// about 170 rows on would take a third of the operations. A row's bits would depend on which form
// its chunk took, and so the text on how the prompt is cut.
#ifndef COMMON_ENGINE_NATIVE_LATENT_ATTENTION_H_
#define COMMON_ENGINE_NATIVE_LATENT_ATTENTION_H_

#include <span>
#include <vector>

#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/kernels/kernels.h"
#include "common/engine/native/row_place.h"
#include "common/engine/native/thread_pool.h"
#include "common/engine/stage_model.h"
#include "common/engine/weights/stage_weights.h"
#include "common/model/model_config.h"

namespace baton {

// Rows of a packed batch. Each has the cosines and sines of its position, [rows, rope_dim / 2].
struct LatentRows {
  const Batch& batch;
  std::span<const RowPlace> places;
  const float* cos;
  const float* sin;

  int size() const { return static_cast<int>(places.size()); }
};

// One caller at a time.
class AbsorbedAttention {
 public:
  // `sizes`: the model as this rank computes it. What is referred to must outlive it.
  AbsorbedAttention(const kernels::KernelTable& kernels, const ModelConfig& sizes,
                    ThreadPool& threads);

  // Allocates the buffers. Once, before Apply; not for a model with other attention.
  void Allocate();

  // Stores the rows of `x`, [rows, hidden], in `pool`'s pages, and attends to all before them and
  // themselves: attended is [rows, attended_size]. At most kRowBlock rows.
  void Apply(const LayerBlock& block, const LatentRows& rows, int layer, const float* x,
             KvPool& pool, float* attended);

 private:
  // A thread's buffers for some heads.
  struct Scratch {
    std::vector<float> gathered;  // [kRowBlock, nope_dim or kv_rank], one head's.
    std::vector<float> query;     // [rows, heads, row]; rows times heads are at most kLatentRows.
    std::vector<float> output;    // [rows, heads, kv_rank]
    std::vector<const void*> tiles;  // Addresses of a sequence's tiles, in the pages' type.
  };

  // Fills compressed_ and queries_.
  void Project(const LayerBlock& block, const LatentRows& rows, const float* x);
  void Rotate(float* x, const LatentRows& rows, int row);
  template <typename Element>
  void Store(const LatentRows& rows, int layer, KvPool& pool);
  template <typename Element>
  void AttendHeads(const LayerBlock& block, const LatentRows& rows, int layer, KvPool& pool,
                   IndexRange heads, Scratch& scratch,
                   void (*attention)(const kernels::AttentionArgs<Element>&), float* attended);
  // Queries of `head`, one of `group`, to its place in the scratch.
  void AbsorbQueries(const HeadLinear& keys, int rows, int head, IndexRange group,
                     Scratch& scratch);
  // `tokens` rows of one slice from `row` on, for all heads in the scratch.
  template <typename Element>
  void AttendRun(const LatentRows& rows, int row, int tokens, int layer, KvPool& pool, int heads,
                 Scratch& scratch, void (*attention)(const kernels::AttentionArgs<Element>&));
  void ExpandValues(const HeadLinear& values, int rows, int head, IndexRange group,
                    Scratch& scratch, float* attended);

  // Columns of compressed_ before the cached row.
  int BeforeRow() const { return latent_.q_rank > 0 ? latent_.q_rank : query_columns_; }
  int Width() const { return BeforeRow() + latent_.row(); }

  const kernels::KernelTable& kernels_;
  const ModelConfig& sizes_;
  const LatentAttention& latent_;
  ThreadPool& threads_;
  const int query_columns_;  // heads * key_dim
  const float scale_;
  std::vector<float> normed_;      // [kRowBlock, hidden]
  std::vector<float> compressed_;  // [kRowBlock, Width()]
  std::vector<float> low_rank_;    // [kRowBlock, q_rank]
  std::vector<float> queries_;     // [kRowBlock, heads * key_dim]
  std::vector<float> paired_;      // [rope_dim]
  std::vector<Scratch> scratch_;   // By thread.
};

}  // namespace baton

#endif  // COMMON_ENGINE_NATIVE_LATENT_ATTENTION_H_
