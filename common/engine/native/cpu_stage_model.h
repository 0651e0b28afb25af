// The stage model that computes with Baton's own kernels on the CPU: a layer loop over shared
// blocks (attention with optional biases, q/k norms, windows and soft caps, rotary embeddings,
// latent attention, gated layers, experts) that ModelConfig describes.
#ifndef COMMON_ENGINE_NATIVE_CPU_STAGE_MODEL_H_
#define COMMON_ENGINE_NATIVE_CPU_STAGE_MODEL_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/attention/rotary.h"
#include "common/engine/kernels/kernels.h"
#include "common/engine/native/feed_forward.h"
#include "common/engine/native/head_rows.h"
#include "common/engine/native/latent_attention.h"
#include "common/engine/native/row_place.h"
#include "common/engine/native/thread_pool.h"
#include "common/engine/ranks/rank_group.h"
#include "common/engine/stage_model.h"
#include "common/engine/weights/stage_setup.h"
#include "common/engine/weights/stage_weights.h"

namespace baton {

class CpuStageModel final : public StageModel {
 public:
  // Lets exceptions of libraries through; LoadStageModel catches them.
  static absl::StatusOr<std::unique_ptr<StageModel>> Create(const ExecutorOptions& options);

  const ModelConfig& config() const override { return config_; }
  const KvGeometry& kv() const override { return pool_->geometry(); }
  KvMemory& kv_memory() override { return *kv_memory_; }
  ElementType activation_type() const override { return dtype_; }
  int activation_columns() const override {
    return sliced_ ? config_.hidden_size / shard_.rank.size : config_.hidden_size;
  }
  TensorRank tensor_rank() const override { return shard_.rank; }
  absl::Status JoinGroup(std::shared_ptr<Communicator> group) override;
  void EndGroup(const absl::Status& why) override { group_.Fail(why); }
  int threads() const override { return threads_.threads(); }
  void ParallelFor(int count, const std::function<void(int, int)>& body) override {
    threads_.ParallelFor(count, body);
  }
  absl::Status Forward(const Batch& batch, const TensorView& in, const TensorView& out,
                       std::span<float> logits) override;

 private:
  // For each KV head, the addresses of the tiles of its keys and values: [kv_heads, tiles].
  template <typename Element>
  struct TileLists {
    std::vector<const Element*> keys;
    std::vector<const Element*> values;
  };
  // What one head of keys computes of one sequence: its rows, from `row` of the block on.
  struct HeadRun {
    int layer, head, row, position, tokens;
  };
  // Buffers for one block of rows, of this rank's sizes.
  struct Scratch {
    std::vector<float> normed;     // [rows, hidden]
    std::vector<float> qkv;        // [rows, query_size + 2 * kv_size]
    std::vector<float> attended;   // [rows, attended_size]
    std::vector<float> projected;  // [rows, hidden]; only with one rank. Grows for sparse layers.
    std::vector<float>
        vocabulary;          // [kLogitRows, vocab]; only with several ranks, on the last stage.
    TileLists<float> tiles;  // This or the next one is used, by the type of the pages.
    TileLists<kernels::Bf16> bf16_tiles;
  };
  // A rope and what it makes of the batch's positions.
  struct Turns {
    Turns(const ModelConfig& config, bool sliding) : rotary(config, sliding) {}
    const Rotary rotary;
    std::vector<float> cos, sin;  // [batch tokens, rope_dim / 2]
  };
  CpuStageModel(const StageSetup& setup, const kernels::KernelTable& kernels,
                const ExecutorOptions& options);

  void AllocateScratch();
  absl::Status Compute(const Batch& batch, const TensorView& in, const TensorView& out,
                       std::span<float> logits);
  // The memory of a batch's residual stream: `out` if it has the right type and size, else hidden_.
  float* ResidualStream(const TensorView& out);
  absl::Status TakeInput(const TensorView& in, float* x);
  void GiveOutput(const float* x, const TensorView& out) const;
  void PlaceRows(const Batch& batch);
  RowPlace PlaceOf(int row) const { return places_[static_cast<size_t>(row)]; }
  absl::Status Embed(const Batch& batch, float* x);
  // `x` is the residual stream of the whole batch.
  absl::Status RunLayer(const Batch& batch, int layer, int tokens, float* x);
  // The same with several ranks: the partial sums of one chunk of rows are reduced while the next
  // chunk is computed. The last sums are still under way when it returns; FinishSums waits for
  // them.
  absl::Status RunPartOfLayer(const Batch& batch, int layer, float* x);
  absl::Status FinishSums(size_t chunk, int layer, bool ends_layer, float* x);
  // Adds what one half of a layer gives, normalised in place by `norm` if there is one, to the rows
  // of x.
  void AddOutput(const std::vector<float>& norm, IndexRange rows, float* output, float* x) const;
  // What the two halves of a layer add to rows [begin, end), or this rank's part of it: [rows,
  // hidden].
  absl::Status Attention(const Batch& batch, int layer, int begin, int end, const float* x,
                         float* projected);
  void Mlp(int layer, int begin, int end, const float* x, float* projected) {
    const size_t first = static_cast<size_t>(begin) * static_cast<size_t>(config_.hidden_size);
    feed_forward_.Apply(BlockOf(layer), x + first, end - begin, projected);
  }
  void ProjectQkv(const LayerBlock& block, int rows, const float* x);
  // Stores keys and values in the pages' type and attends to them.
  void StoreAndAttend(const Batch& batch, int layer, int begin, int rows);
  template <typename Element>
  void StoreKv(const Batch& batch, int layer, int begin, int rows);
  template <typename Element>
  void Attend(const Batch& batch, int layer, int begin, int rows, TileLists<Element>& lists,
              void (*attention)(const kernels::AttentionArgs<Element>&));
  template <typename Element>
  kernels::AttentionArgs<Element> ArgsOf(const SequenceSlice& slice, const HeadRun& run,
                                         TileLists<Element>& lists);
  absl::Status LastLogits(const Batch& batch, const float* x, std::span<float> logits);
  absl::Status AllLogits(const Batch& batch, const float* x);
  // Normalises the `rows` rows at scratch_.normed and multiplies them by the head. With several
  // ranks, at most kLogitRows rows. `logits` is [rows, vocab] of the whole model on the rank that
  // gets logits.
  absl::Status ApplyHead(int rows, std::span<float> logits);
  const Turns& TurnsOf(int layer) const {
    return turns_[config_.sliding_rope_theta > 0 && config_.slides(layer) ? 1 : 0];
  }
  const LayerBlock& BlockOf(int layer) const {
    return stage_.layers[static_cast<size_t>(layer - kv().layer_begin)];
  }

  const ModelConfig config_;
  const ModelShard shard_;
  const ModelConfig& sizes_;  // The shard's.
  const ElementType dtype_;
  const bool sliced_;  // Activations are received and sent as this rank's slice only.
  const kernels::KernelTable kernels_;  // With the attention of --cpu-numerics.
  ThreadPool threads_;
  Turns turns_[2];  // The second is of sliding layers that have a rope of their own.
  const float attention_scale_;
  StageBlocks stage_;
  FeedForward feed_forward_;
  AbsorbedAttention latent_attention_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<HostKvMemory> kv_memory_;  // Over the pool's pages.

  RankGroup group_;
  HeadPreparation heads_;
  Scratch scratch_;
  size_t max_tiles_ = 0;  // The most tiles that a sequence has.
  std::vector<RowPlace> places_;
  std::vector<float> hidden_;     // [batch tokens, hidden]; see ResidualStream.
  std::vector<std::byte> whole_;  // The input, gathered from all ranks' slices.
  std::vector<float>
      some_logits_;  // [kLogitRows, vocab]; allocated when a slice first wants all logits.
};

}  // namespace baton

#endif  // COMMON_ENGINE_NATIVE_CPU_STAGE_MODEL_H_
