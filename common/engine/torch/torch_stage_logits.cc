// The end of TorchStageModel's layers: logits, and what Forward tells of them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

#include "common/base/status.h"
#include "common/engine/requirements.h"
#include "common/engine/torch/torch_draws.h"
#include "common/engine/torch/torch_operators.h"
#include "common/engine/torch/torch_stage_model.h"

namespace baton {

at::Tensor TorchStageModel::Logits(const at::Tensor& x) const {
  const at::Tensor logits =
      MultiplyRows(kernels_.get(), AddNorm(x, {}, weights_.final_norm).normed, weights_.head, {})
          .to(at::kFloat)
          .contiguous();
  if (config_.logit_softcap == 0) return logits;
  return logits.div(config_.logit_softcap).tanh_().mul_(config_.logit_softcap);
}

absl::StatusOr<at::Tensor> TorchStageModel::Head(const at::Tensor& x) {
  const at::Tensor part = Logits(x);
  if (group_.alone()) return device_.ToHost(part);
  if (!device_.is_host()) return GatherOnDevice(part);
  at::Tensor all;
  std::span<float> gathered;
  if (tells_logits()) {
    all = at::empty({part.size(0), config_.vocab_size}, at::kFloat);
    gathered = {all.data_ptr<float>(), static_cast<size_t>(all.numel())};
  }
  BATON_RETURN_IF_ERROR(group_.Gather({part.data_ptr<float>(), static_cast<size_t>(part.numel())},
                                      static_cast<int>(part.size(0)), gathered));
  return all;
}

absl::StatusOr<at::Tensor> TorchStageModel::GatherOnDevice(const at::Tensor& part) {
  const int64_t ranks = shard_.rank.size;
  const at::Tensor all = at::empty({ranks, part.size(0), part.size(1)}, part.options());
  BATON_RETURN_IF_ERROR(group_.GatherParts(device_.Lend(part), device_.Lend(all)));
  if (!tells_logits()) return at::Tensor();
  return device_.ToHost(all.permute({1, 0, 2}).reshape({part.size(0), ranks * part.size(1)}));
}

absl::Status TorchStageModel::TellLogits(const Batch& batch, const TorchStep& step,
                                         const at::Tensor& x, std::span<float> logits) {
  int64_t row = 0;
  for (const SequenceSlice& slice : batch.slices) {
    for (int first = 0; slice.on_logits != nullptr && first < slice.token_count;
         first += kLogitRows) {
      const int rows = std::min(kLogitRows, slice.token_count - first);
      BATON_ASSIGN_OR_RETURN(const at::Tensor told, Head(x.narrow(0, row + first, rows)));
      if (!tells_logits()) continue;
      slice.on_logits(first, {told.data_ptr<float>(), static_cast<size_t>(told.numel())});
    }
    row += slice.token_count;
  }
  if (step.last.size(0) == 0) return absl::OkStatus();
  const at::Tensor last = x.index_select(0, step.last);
  if (group_.alone()) {
    TellRows(batch, Logits(last), logits);
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(const at::Tensor told, Head(last));
  if (tells_logits()) std::memcpy(logits.data(), told.data_ptr<float>(), logits.size_bytes());
  return absl::OkStatus();
}

void TorchStageModel::TellRows(const Batch& batch, const at::Tensor& rows,
                               std::span<float> logits) const {
  std::vector<int64_t> told;
  std::vector<int64_t> drawn;
  std::vector<RowDraw> draws;
  std::vector<int32_t*> tokens;
  int64_t row = 0;
  for (const SequenceSlice& slice : batch.slices) {
    if (slice.wants_logits) told.push_back(row);
    if (slice.drawn != nullptr) {
      drawn.push_back(row);
      draws.push_back(slice.draw);
      tokens.push_back(slice.drawn);
    }
    if (slice.wants_row()) ++row;
  }
  const auto chosen = [&](const std::vector<int64_t>& of) {
    const bool all = static_cast<int64_t>(of.size()) == rows.size(0);
    return all ? rows : rows.index_select(0, device_.UploadNumbers(of));
  };
  if (!drawn.empty()) {
    const std::vector<int32_t> ids = DrawTokens(device_, chosen(drawn), draws);
    for (size_t i = 0; i < ids.size(); ++i) *tokens[i] = ids[i];
  }
  if (told.empty()) return;
  at::from_blob(logits.data(), {static_cast<int64_t>(told.size()), rows.size(1)}, at::kFloat)
      .copy_(chosen(told), /*non_blocking=*/true);
}

}  // namespace baton
