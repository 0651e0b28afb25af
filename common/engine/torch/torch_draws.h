// Draws of tokens where the logits are, so that a step's rows need not come to the host. Part of
// the plugin.
#ifndef COMMON_ENGINE_TORCH_TORCH_DRAWS_H_
#define COMMON_ENGINE_TORCH_TORCH_DRAWS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "common/engine/sampling/sampling_params.h"
#include "common/engine/torch/torch_device.h"

namespace baton {

// Tokens that top_p is taken from at first. Rejected: to sort all of a vocabulary, which takes
// longer on a GPU than a small model's step.
inline constexpr int64_t kDrawCandidates = 1024;

// What stands for a token.
inline constexpr int64_t kNotFinite = -1;         // A logit is infinite or not a number.
inline constexpr int64_t kTooFewCandidates = -2;  // Top_p keeps more than so many.

// The token of each row of `logits`, [rows, vocab] float32 on `device`, as Sampler draws it:
// weights are integers here, too, so that sums are exact, and equal logits rank by their ids. An
// exponential may differ from the host's in its last bits, as between instruction sets.
//
// Returns [rows] int64 on `device`; the host waits for nothing. At least one row.
at::Tensor DrawRows(const TorchDevice& device, const at::Tensor& logits,
                    std::span<const RowDraw> draws, int64_t candidates = kDrawCandidates);

// The same on the host, of any number of rows, from as many candidates as it takes: a row that has
// too few is drawn from all. Waits for the device.
std::vector<int32_t> DrawTokens(const TorchDevice& device, const at::Tensor& logits,
                                std::span<const RowDraw> draws,
                                int64_t candidates = kDrawCandidates);

// Whether a row of `vocab` logits may have too few candidates.
bool MayLackCandidates(const RowDraw& draw, int64_t vocab);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_TORCH_DRAWS_H_
