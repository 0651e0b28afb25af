// A stage model that computes values from which a receiver can tell every byte: KV and activations
// are functions of (token, position, layer, ...), and the logits name one token.
#ifndef SERVICES_PREFILL_TESTING_FAKE_MODEL_H_
#define SERVICES_PREFILL_TESTING_FAKE_MODEL_H_

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "common/collective/communicator.h"
#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/stage_model.h"

namespace baton::prefill {

inline constexpr int kFakeLayers = 6;
inline constexpr int kFakeHidden = 8;
inline constexpr int kFakeVocab = 1000;
inline constexpr int kFakeKvHeads = 2;
inline constexpr int kFakeHeadDim = 4;
inline constexpr int kFakePageSize = 16;

// Exact in float32. `kv` is 0 for keys, 1 for values.
float FakeKv(int token, int position, int layer, int kv, int head, int dim);
// The first token after a prompt that ends with `last_token`.
int FakeFirstToken(int last_token, int prompt_tokens);

// As one of several ranks it has its heads of the KV and its slice of the activations, which the
// ranks gather, and activations are sums of all ranks' parts; so ranks that don't run the same
// steps are noticed.
class FakeModel final : public StageModel {
 public:
  FakeModel(int layer_begin, int layer_end, int page_count, TensorRank rank = {});

  const ModelConfig& config() const override { return config_; }
  const KvGeometry& kv() const override { return kv_; }
  KvMemory& kv_memory() override { return *kv_memory_; }
  int activation_columns() const override { return kFakeHidden / rank_.size; }
  TensorRank tensor_rank() const override { return rank_; }
  absl::Status JoinGroup(std::shared_ptr<Communicator> group) override;
  void EndGroup(const absl::Status& why) override;
  absl::Status Forward(const Batch& batch, const TensorView& in, const TensorView& out,
                       std::span<float> logits) override;

  // Called at the begin of every Forward, on its thread; may block. Set before the first one.
  std::function<void()> before_forward;

 private:
  // `row`: of the slice's first token in the batch.
  void TellLogits(const SequenceSlice& slice, std::span<const float> in, size_t row) const;
  void WriteKv(int page, int token, int position);
  absl::Status Gather(const TensorView& in, std::vector<float>& whole);
  absl::Status Sum(std::span<float> values);

  const TensorRank rank_;
  std::shared_ptr<Communicator> group_;
  ModelConfig config_;
  KvGeometry kv_;
  std::vector<float> pages_;
  std::unique_ptr<HostKvMemory> kv_memory_;  // Wraps `pages_`.
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_TESTING_FAKE_MODEL_H_
