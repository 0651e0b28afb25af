// A stage model whose arithmetic is a wait of the length that a profile predicts: real buffers of
// real size, page tables, hand-off and draws around it. So a chain of many stages of a large model
// runs on two cores, and what it takes longer than predicted is Baton's.
//
// In place of numbers it computes words (timed_content.h) and checks them: activations that are not
// the previous stage's, or KV that is not the prompt's, fail the step with DATA_LOSS. The rest of
// both has the right size and no meaning.
//
// It waits as a device with a queue works: a step begins when it was submitted, or at the end of
// the one before if that is later, however late this thread wakes up in between; only ends are seen
// late. (Rejected: from the thread's own begin. Then each step of a full queue would be late by a
// wake-up, which a device that is told of it before does not wait for.)
//
// A rank of several has its own KV heads, takes and gives its slice of the activations, and waits
// as long as each of the others, since a profile says what they take together. Before the wait all
// ranks compare their words, by sums that fail as those of layers would when a rank dies.
#ifndef COMMON_ENGINE_TIMED_TIMED_STAGE_MODEL_H_
#define COMMON_ENGINE_TIMED_TIMED_STAGE_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/executor_options.h"
#include "common/engine/ranks/rank_group.h"
#include "common/engine/stage_model.h"
#include "common/engine/timed/timed_profile.h"

namespace baton {

class TimedStageModel final : public StageModel {
 public:
  // Of `options.timed_profile`; the vocabulary is that of `options.model_path`.
  static absl::StatusOr<std::unique_ptr<StageModel>> Create(const ExecutorOptions& options);

  // `sliced`: whether ranks take and give slices of the activations.
  TimedStageModel(const TimedProfile& profile, ModelConfig config, std::unique_ptr<KvPool> pool,
                  TensorRank rank = {}, bool sliced = false);

  const ModelConfig& config() const override { return config_; }
  const KvGeometry& kv() const override { return pool_->geometry(); }
  KvMemory& kv_memory() override { return kv_memory_; }
  ElementType activation_type() const override { return profile_.dtype; }
  int activation_columns() const override {
    return sliced_ ? config_.hidden_size / rank_.size : config_.hidden_size;
  }
  absl::StatusOr<MemoryBuffer> AllocateActivations(size_t bytes) override;
  TensorRank tensor_rank() const override { return rank_; }
  absl::Status JoinGroup(std::shared_ptr<Communicator> group) override;
  void EndGroup(const absl::Status& why) override { group_.Fail(why); }
  absl::Status Forward(const Batch& batch, const TensorView& in, const TensorView& out,
                       std::span<float> logits) override;

  // What a step takes, without noise.
  double Micros(const Batch& batch) const;

 private:
  std::byte* Slot(int page, int layer, int head, int position);
  absl::Status Compute(const Batch& batch, const TensorView& in, const TensorView& out,
                       std::span<float> logits);
  // All ranks' slices of the activations together, and this rank's slice of its own.
  absl::StatusOr<std::span<const std::byte>> TakeInput(const TensorView& in);
  std::span<std::byte> WholeOutput(const TensorView& out);
  void GiveOutput(std::span<const std::byte> whole, const TensorView& out) const;
  // DataLoss unless every rank's step has come to the same words.
  absl::Status CompareWords(uint64_t words);
  absl::StatusOr<uint64_t> WordBefore(const SequenceSlice& slice);
  uint64_t MilestonesBefore(const SequenceSlice& slice, int position);
  absl::Status Play(const SequenceSlice& slice, std::span<const std::byte> in,
                    std::span<std::byte> out, size_t row, int32_t& next, uint64_t& words);
  void TellLogits(const SequenceSlice& slice, int first, uint64_t word, int position);

  const TimedProfile profile_;
  const ModelConfig config_;
  const TensorRank rank_;
  const bool sliced_;
  TimedSteps steps_;     // Of these layers.
  int64_t free_us_ = 0;  // When the device is done with its last batch.
  const std::unique_ptr<KvPool> pool_;
  HostKvMemory kv_memory_;
  RankGroup group_;
  std::vector<std::byte> whole_in_;  // Of ranks that have slices.
  std::vector<std::byte> whole_out_;
};

}  // namespace baton

#endif  // COMMON_ENGINE_TIMED_TIMED_STAGE_MODEL_H_
