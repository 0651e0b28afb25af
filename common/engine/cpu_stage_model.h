// The stage model that computes on this machine's CPU.
#ifndef COMMON_ENGINE_CPU_STAGE_MODEL_H_
#define COMMON_ENGINE_CPU_STAGE_MODEL_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/host_kv_memory.h"
#include "common/engine/kernels/kernels.h"
#include "common/engine/kv_pool.h"
#include "common/engine/rotary.h"
#include "common/engine/stage_model.h"
#include "common/engine/stage_setup.h"
#include "common/engine/stage_weights.h"
#include "common/engine/thread_pool.h"

namespace baton {

class CpuStageModel final : public StageModel {
 public:
  // Throws what libraries throw; LoadStageModel catches.
  static absl::StatusOr<std::unique_ptr<StageModel>> Create(const ExecutorOptions& options);

  const ModelConfig& config() const override { return config_; }
  const KvGeometry& kv() const override { return pool_->geometry(); }
  KvMemory& kv_memory() override { return *kv_memory_; }
  ElementType activation_type() const override { return dtype_; }
  int threads() const override { return threads_.threads(); }
  void ParallelFor(int count, const std::function<void(int, int)>& body) override {
    threads_.ParallelFor(count, body);
  }
  absl::Status Forward(const Batch& batch, const TensorView& in, const TensorView& out,
                       std::span<float> logits) override;

 private:
  // For each KV head, where the tiles of its keys and values lie: [kv_heads, tiles].
  template <typename Element>
  struct TileLists {
    std::vector<const Element*> keys;
    std::vector<const Element*> values;
  };
  // Buffers for one block of rows, whatever the batch's size.
  struct Scratch {
    std::vector<float> normed;    // [rows, hidden]
    std::vector<float> qkv;       // [rows, query_size + 2 * kv_size]
    std::vector<float> attended;  // [rows, query_size]
    std::vector<float> gate_up;   // [rows, 2 * intermediate]
    std::vector<float> inner;     // [rows, intermediate]
    std::vector<float> residual;  // [rows, hidden]
    TileLists<float> tiles;       // One of them, by the type of the pages.
    TileLists<kernels::Bf16> bf16_tiles;
  };
  // Where a row of the packed batch stands in its sequence.
  struct RowPlace {
    int slice;
    int position;
  };

  CpuStageModel(const StageSetup& setup, const kernels::KernelTable& kernels, int threads);

  void AllocateScratch();
  absl::Status Compute(const Batch& batch, const TensorView& in, const TensorView& out,
                       std::span<float> logits);
  void TakeInput(const TensorView& in, float* x) const;
  void PlaceRows(const Batch& batch);
  RowPlace PlaceOf(int row) const { return places_[static_cast<size_t>(row)]; }
  void Embed(const Batch& batch, float* x);
  // Rows [begin, end) of the batch; `x` is the residual stream of the whole batch.
  void RunLayer(const Batch& batch, int layer, int begin, int end, float* x);
  void ProjectQkv(const LayerBlock& block, int begin, int rows, const float* x);
  // With keys and values of the pages' type.
  void StoreAndAttend(const Batch& batch, int layer, int begin, int rows);
  template <typename Element>
  void StoreKv(const Batch& batch, int layer, int begin, int rows);
  template <typename Element>
  void Attend(const Batch& batch, int layer, int begin, int rows, TileLists<Element>& lists,
              void (*attention)(const kernels::AttentionArgs<Element>&));
  void Mlp(const LayerBlock& block, int rows, float* x);
  void LastLogits(const Batch& batch, const float* x, float* logits);
  void AllLogits(const Batch& batch, const float* x);
  // Normalises the `rows` rows at scratch_.normed and multiplies by the head.
  void ApplyHead(int rows, float* logits);

  const ModelConfig config_;
  const ElementType dtype_;
  const kernels::KernelTable& kernels_;
  ThreadPool threads_;
  const Rotary rotary_;
  const float attention_scale_;
  StageBlocks stage_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<HostKvMemory> kv_memory_;  // Of the pool's pages.

  Scratch scratch_;
  size_t max_tiles_ = 0;  // Of a sequence.
  std::vector<RowPlace> places_;
  std::vector<float> cos_, sin_;    // [batch tokens, head_dim / 2]
  std::vector<float> hidden_;       // [batch tokens, hidden]; last stage, or bfloat16.
  std::vector<float> some_logits_;  // [kLogitRows, vocab], once all logits of a slice were wanted.
};

}  // namespace baton

#endif  // COMMON_ENGINE_CPU_STAGE_MODEL_H_
