// TorchStageModel's steps of single tokens by graphs, which the device may begin ahead.
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/engine/torch/torch_draws.h"
#include "common/engine/torch/torch_experts.h"
#include "common/engine/torch/torch_stage_model.h"

namespace baton {
namespace {

class BegunGraph final : public BegunBatch {
 public:
  // `drawn`: int64 in host memory, one for each of `tokens`, when `drawn_at` is reached.
  BegunGraph(const TorchDevice& device, std::unique_ptr<QueuePoint> drawn_at, at::Tensor drawn,
             std::vector<int32_t*> tokens)
      : device_(device),
        drawn_at_(std::move(drawn_at)),
        drawn_(std::move(drawn)),
        tokens_(std::move(tokens)) {}

  absl::Status End() override {
    return GuardTorch([&] {
      const TorchDevice::Entered entered = device_.Enter(Queue::kCompute);
      drawn_at_->Await();
      const auto* const drawn = drawn_.data_ptr<int64_t>();
      for (size_t i = 0; i < tokens_.size(); ++i) *tokens_[i] = static_cast<int32_t>(drawn[i]);
      return absl::OkStatus();
    });
  }

 private:
  const TorchDevice device_;
  const std::unique_ptr<QueuePoint> drawn_at_;
  const at::Tensor drawn_;
  const std::vector<int32_t*> tokens_;
};

}  // namespace

void TorchStageModel::PrepareKernels(int most_rows) {
  constexpr int64_t kColumns = 8;  // A kernel's load.
  if (device_.is_host() || dtype_ != ElementType::kBFloat16 ||
      kv_.element_type != ElementType::kBFloat16 || config_.hidden_size % kColumns != 0) {
    return;
  }
  kernels_ = CreateDeviceKernels(
      device_, {kv_.head_dim, sizes_.num_attention_heads, kv_.kv_heads, kv_.page_size});
  if (kernels_ == nullptr) return;
  kernels_attend_ = kernels_->fits_heads() && config_.latent.kv_rank == 0 &&
                    !config_.qk_norm_whole && config_.rope_dim() == config_.head_dim &&
                    !config_.norm_adds_one && config_.sliding_layers.empty() &&
                    config_.score_softcap == 0;
  if (most_rows == 0 || !CanBeCaptured()) return;
  const DecodeGraphs::Options options = {most_rows, kv_.page_size, config_.sliding_window,
                                         first_stage() ? 0 : config_.hidden_size};
  graphs_ = std::make_unique<DecodeGraphs>(
      device_, *kernels_, options, [this](TorchStep& step, const at::Tensor& input) {
        const auto x = Layers({&step, 1}, first_stage() ? Embed(step) : input);
        TORCH_CHECK(x.ok(), x.status().ToString());
        return last_stage() ? Logits(*x) : *x;
      });
}

// Sums over ranks and loops over experts wait for the host.
bool TorchStageModel::CanBeCaptured() const {
  return kernels_attend_ && group_.alone() &&
         std::all_of(weights_.layers.begin(), weights_.layers.end(),
                     [this](const TorchLayer& layer) {
                       return !layer.sparse || GroupedFits(layer.stacked, kernels_.get());
                     });
}

absl::StatusOr<std::unique_ptr<BegunBatch>> TorchStageModel::Begin(const Batch& batch) {
  std::vector<RowDraw> draws;
  std::vector<int32_t*> tokens;
  for (const SequenceSlice& slice : batch.slices) {
    if (slice.drawn == nullptr || MayLackCandidates(slice.draw, config_.vocab_size)) return nullptr;
    draws.push_back(slice.draw);
    tokens.push_back(slice.drawn);
  }
  BATON_RETURN_IF_ERROR(Validate(batch, {}, {}, 0));
  if (!graphs_->Takes(batch)) return nullptr;
  return GuardTorch([&]() -> absl::StatusOr<std::unique_ptr<BegunBatch>> {
    const c10::InferenceMode inference;
    const TorchDevice::Entered entered = device_.Enter(Queue::kCompute);
    drawn_ = DrawRows(device_, graphs_->Run(batch, {}, drawn_), draws);
    const at::Tensor host = device_.AllocateStaging(drawn_.nbytes()).view(at::kLong);
    host.copy_(drawn_, /*non_blocking=*/true);
    return std::make_unique<BegunGraph>(device_, kernels_->Mark(), host, std::move(tokens));
  });
}

}  // namespace baton
