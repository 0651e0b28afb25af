// The stage model that computes with libtorch's operators, on any device that libtorch supports:
// one description of the layers for CPU and CUDA. It is a second opinion on Baton's own kernels,
// and the way to GPUs.
//
// With bfloat16 every operation rounds, as Hugging Face's do, while Baton's own layers round once
// after each layer. Not batch invariant: torch picks kernels by shape. Part of the plugin
// (README.md).
#ifndef COMMON_ENGINE_TORCH_TORCH_STAGE_MODEL_H_
#define COMMON_ENGINE_TORCH_TORCH_STAGE_MODEL_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/kv_memory.h"
#include "common/engine/ranks/rank_group.h"
#include "common/engine/stage_model.h"
#include "common/engine/torch/decode_graphs.h"
#include "common/engine/torch/device_kv_memory.h"
#include "common/engine/torch/kernels/device_kernels.h"
#include "common/engine/torch/torch_attention.h"
#include "common/engine/torch/torch_device.h"
#include "common/engine/torch/torch_step.h"
#include "common/engine/torch/torch_weights.h"
#include "common/engine/weights/stage_setup.h"

namespace baton {

class TorchStageModel final : public StageModel {
 public:
  // Throws what torch throws; the plugin catches it.
  static absl::StatusOr<std::unique_ptr<StageModel>> Create(const ExecutorOptions& options);

  const ModelConfig& config() const override { return config_; }
  const KvGeometry& kv() const override { return kv_; }
  KvMemory& kv_memory() override { return *kv_memory_; }
  ElementType activation_type() const override { return dtype_; }
  int activation_columns() const override {
    return sliced_ ? config_.hidden_size / shard_.rank.size : config_.hidden_size;
  }
  // Pinned if the layers are on a GPU.
  absl::StatusOr<MemoryBuffer> AllocateActivations(size_t bytes) override;
  TensorRank tensor_rank() const override { return shard_.rank; }
  absl::Status JoinGroup(std::shared_ptr<Communicator> group) override;
  void EndGroup(const absl::Status& why) override { group_.Fail(why); }
  // On a CPU all but the highest logit is found sooner by Sampler.
  bool Draws(const RowDraw& draw) const override {
    return last_stage() && shard_.rank.alone() && (draw.scale == 0 || !device_.is_host());
  }
  absl::Status Forward(const Batch& batch, const TensorView& in, const TensorView& out,
                       std::span<float> logits) override;
  bool begins() const override { return graphs_ != nullptr && first_stage() && last_stage(); }
  // Graphs whose tokens are all drawn here.
  absl::StatusOr<std::unique_ptr<BegunBatch>> Begin(const Batch& batch) override;

 private:
  TorchStageModel(const StageSetup& setup, const TorchDevice& device,
                  const ExecutorOptions& options);
  absl::Status AllocatePages(Landings landings);
  absl::Status MakePages(Landings landings);
  // On a GPU: kernels, and graphs of at most `most_rows` rows.
  void PrepareKernels(int most_rows);
  bool CanBeCaptured() const;

  absl::Status Compute(const Batch& batch, const TensorView& in, const TensorView& out,
                       std::span<float> logits);
  absl::Status ComputeByGraph(const Batch& batch, const TensorView& in, const TensorView& out,
                              std::span<float> logits);
  // The second step is the sliding layers', if there are any.
  absl::StatusOr<at::Tensor> Layers(std::span<TorchStep> steps, at::Tensor x);
  // Tokens of other ranks become zeros.
  at::Tensor Embed(const TorchStep& step) const;
  at::Tensor EmbeddingRows(const at::Tensor& ids) const;
  // The input activations on the device, gathered from the ranks' slices.
  absl::StatusOr<at::Tensor> TakeInput(const TensorView& in);
  void GiveOutput(const at::Tensor& x, const TensorView& out) const;
  // The sum of all ranks' `part`, in float32, in the device's memory.
  absl::StatusOr<at::Tensor> Sum(const at::Tensor& part);
  // `rows` times a row-parallel weight, summed over the ranks one chunk of rows at a time: the sums
  // of a chunk are reduced while the next one is multiplied. `bias` is undefined on ranks but 0.
  absl::StatusOr<at::Tensor> Project(const at::Tensor& rows, const at::Tensor& weight,
                                     const at::Tensor& bias);
  StepShape ShapeOfSteps(bool sliding) const;
  // Returns the input of its row-parallel projection.
  absl::StatusOr<at::Tensor> Attention(const TorchStep& step, int layer, const TorchLayer& weights,
                                       const at::Tensor& normed);
  at::Tensor LatentAttention(const TorchStep& step, int layer, const TorchLayer& weights,
                             const at::Tensor& normed);
  at::Tensor InHalves(const at::Tensor& heads) const;
  // As Attention, by Baton's kernels.
  at::Tensor AttentionByKernels(const TorchStep& step, int layer, const TorchLayer& weights,
                                const at::Tensor& qkv) const;
  // Takes queries, keys and values [tokens, heads or kv_heads, dim], whose KV is in the pages as
  // well: [tokens, heads * value_dim]. With latent rows `value` is undefined, since keys begin with
  // it.
  at::Tensor AttendAll(const TorchStep& step, int layer, const at::Tensor& query,
                       const at::Tensor& key, const at::Tensor& value) const;
  // [tokens, heads, value_dim]
  at::Tensor AttendChunkOf(const TorchStep::Chunk& chunk, int layer, const at::Tensor& query,
                           const KeyBlock& own, const at::Tensor& heads) const;
  // Attention of `decode_rows`, in their order: [rows, heads, head_dim] to [rows, heads,
  // value_dim].
  at::Tensor AttendDecodeRows(const TorchStep& step, int layer, const at::Tensor& query) const;
  // Keys and values of pages, [.., kv_heads, tokens, dim] for ids [.., pages], in the layers' type.
  KeyBlock Gather(int layer, const at::Tensor& pages, const at::Tensor& heads) const;
  ScoreForm score_form() const;
  // What this rank's experts add to the rows, which the ranks then sum.
  at::Tensor Sparse(const TorchLayer& weights, const at::Tensor& normed) const;
  absl::StatusOr<at::Tensor> FeedForward(const TorchLayer& weights, const at::Tensor& normed);
  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight) const;
  // x + added, which may be undefined, and its norm.
  DeviceKernels::Normed AddNorm(const at::Tensor& x, const at::Tensor& added,
                                const at::Tensor& weight) const;
  static at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight, double eps);
  // Normalises all queries, and all keys, of a token together: `heads` are [tokens, columns], of
  // which this rank has a part.
  absl::Status NormWhole(const TorchLayer& weights, at::Tensor& queries, at::Tensor& keys);
  static at::Tensor Rotate(const at::Tensor& heads, const TorchStep& step);
  // This rank's part of the logits, float32 on the device.
  at::Tensor Logits(const at::Tensor& x) const;
  // Gives each slice what it wants of its row of `rows`: [slices that want one, vocab].
  void TellRows(const Batch& batch, const at::Tensor& rows, std::span<float> logits) const;
  absl::Status TellLogits(const Batch& batch, const TorchStep& step, const at::Tensor& x,
                          std::span<float> logits);
  // [rows, vocab] float32 in host memory; undefined on ranks without logits.
  absl::StatusOr<at::Tensor> Head(const at::Tensor& x);
  // Gathers each rank's part of the logits. All ranks get them, since a GPU communicator can't
  // gather to one rank; only rank 0 uses them.
  absl::StatusOr<at::Tensor> GatherOnDevice(const at::Tensor& part);
  // Keys (0) or values (1) of a layer: [pages, kv_heads, page_size, head_dim].
  at::Tensor Pages(int layer, int value) const;

  const ModelConfig config_;
  const ModelShard shard_;
  const ModelConfig& sizes_;  // The shard's.
  const KvGeometry kv_;
  const ElementType dtype_;  // The type of weights and of all results.
  const bool sliced_;        // Whether ranks receive and send slices of the activations.
  const TorchDevice device_;
  const double embedding_scale_;
  const TorchRotary rotaries_[2];  // The second is the sliding layers'.
  RankGroup group_;
  // [tokens, hidden] float32 on the device: the row-parallel sums under way. The group uses it
  // until the sums are complete or the group has failed, so it must outlive a step that ends by an
  // exception.
  at::Tensor sums_;
  TorchWeights weights_;
  std::unique_ptr<KvPool> pool_;  // Holds pages_ if the device is a CPU.
  at::Tensor pages_;              // [pages, layers, planes, kv_heads, page_size, head_dim]
  at::Tensor wide_pages_;         // The same in elements of 16 bytes, where rows have whole ones.
  std::unique_ptr<KvMemory> kv_memory_;
  std::unique_ptr<DeviceKernels> kernels_;  // On a GPU, with bfloat16.
  bool kernels_attend_ = false;             // Whether they fit this model's attention.
  std::unique_ptr<DecodeGraphs> graphs_;    // Uses all of the above.
  at::Tensor drawn_;                        // By the last batch that was begun, on the device.
};

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_TORCH_STAGE_MODEL_H_
