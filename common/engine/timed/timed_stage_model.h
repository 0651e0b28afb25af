// A stage model that waits as long as a profile predicts, instead of computing. Buffers, page
// tables, hand-off and draws are real and of real size. So a chain of many stages of a large model
// runs on two cores, and all time beyond the prediction is Baton's own.
//
// Instead of numbers it computes one 64-bit word per token and checks it:
// activations that are not the previous stage's, or KV that is not the prompt's, fail the step with
// DATA_LOSS. The other bytes of both have no meaning.
//
// It waits like a device with a queue. A step begins when it is submitted, or at the end of the
// step before it if that is later, however late this thread wakes up in between. Rejected: counting
// from this thread's wake-up. Each step of a full queue would then be late by a wake-up, which a
// device does not wait for.
//
// One rank of several has its own KV heads, receives and sends its slice of the activations, and
// waits as long as the other ranks, since a profile gives the time that they take together. Before
// the wait all ranks compare their words by a sum, which fails when a rank dies, as the sums of
// real layers do.
#ifndef COMMON_ENGINE_TIMED_TIMED_STAGE_MODEL_H_
#define COMMON_ENGINE_TIMED_TIMED_STAGE_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/ranks/rank_group.h"
#include "common/engine/stage_model.h"
#include "common/engine/timed/timed_profile.h"

namespace baton {

class TimedStageModel final : public StageModel {
 public:
  // Plays `options.timed_profile`; the vocabulary is that of `options.model_path`.
  static absl::StatusOr<std::unique_ptr<StageModel>> Create(const ExecutorOptions& options);

  // `sliced`: whether ranks receive and send slices of the activations.
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

  // The microseconds of a step, without noise.
  double Micros(const Batch& batch) const;

 private:
  std::byte* Slot(int page, int layer, int head, int position);
  absl::Status Compute(const Batch& batch, const TensorView& in, const TensorView& out,
                       std::span<float> logits);
  // All ranks' slices of the activations, gathered. GiveOutput copies this rank's slice to `out`.
  absl::StatusOr<std::span<const std::byte>> TakeInput(const TensorView& in);
  std::span<std::byte> WholeOutput(const TensorView& out);
  void GiveOutput(std::span<const std::byte> whole, const TensorView& out) const;
  // DataLoss unless every rank's step has computed the same words.
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
  TimedSteps steps_;     // These layers'.
  int64_t free_us_ = 0;  // When the device is done with its last batch.
  const std::unique_ptr<KvPool> pool_;
  HostKvMemory kv_memory_;
  RankGroup group_;
  std::vector<std::byte> whole_in_;  // With slices only, like whole_out_.
  std::vector<std::byte> whole_out_;
};

// What a timed model computes instead of numbers: for every token a word that depends on all tokens
// before it. The word is stored in the KV of every layer and sent with the activations, so lost or
// stale data, or another prompt's, is detected. The next token depends on the words alone.

// The word before the first token.
inline constexpr uint64_t kTimedRoot = 0x62a70;

constexpr uint64_t TimedWord(uint64_t before, int32_t token, int position) {
  const uint64_t place =
      (uint64_t{static_cast<uint32_t>(token)} << 32) | static_cast<uint32_t>(position);
  return Mix64(before ^ Mix64(place));
}

// Words at these intervals are read again for every token: each page of 64 tokens has one, and a
// context of 128K some two thousand.
inline constexpr int kTimedMilestone = 64;

constexpr uint64_t AddMilestone(uint64_t sum, uint64_t word, int position) {
  return sum + Mix64(word ^ static_cast<uint32_t>(position));
}

// The token after one whose word is `word`; never one that ends a generation. `milestones`: the sum
// of AddMilestone over the positions before it.
inline int32_t NextTimedToken(uint64_t word, uint64_t milestones, int vocab_size,
                              std::span<const int32_t> eos) {
  uint64_t drawn = Mix64(word + milestones);
  for (int i = 0; i < 64; ++i, drawn = Mix64(drawn)) {
    const auto token = static_cast<int32_t>(drawn % static_cast<uint64_t>(vocab_size));
    if (std::find(eos.begin(), eos.end(), token) == eos.end()) return token;
  }
  return 0;
}

}  // namespace baton

#endif  // COMMON_ENGINE_TIMED_TIMED_STAGE_MODEL_H_
