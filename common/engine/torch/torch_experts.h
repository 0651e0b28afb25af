// What the experts of a sparse layer add to rows, in one of two ways. The loop takes one expert
// after the other, on every device and in every type; on a GPU the host waits for the counts of
// their rows. Grouped products multiply the rows of all experts at once: the host waits for
// nothing, and all shapes follow from the number of rows alone, as a CUDA graph needs it. Part of
// the plugin.
#ifndef COMMON_ENGINE_TORCH_TORCH_EXPERTS_H_
#define COMMON_ENGINE_TORCH_TORCH_EXPERTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "common/engine/torch/kernels/device_kernels.h"
#include "common/engine/torch/torch_operators.h"
#include "common/engine/weights/stage_setup.h"

namespace baton {

// A vector is undefined if the model family does not have it.
using TorchGated = GatedLayer<at::Tensor, at::Tensor>;

// The matrices of the experts that a rank holds, in the order of their ids. Undefined if there are
// none, or if experts have biases, which grouped products don't add.
struct StackedExperts {
  at::Tensor gate_up;  // [experts, 2 * inner, hidden]
  at::Tensor down;     // [experts, hidden, inner]
};

// Moves the experts' matrices together. The experts then have views: nothing is held twice.
StackedExperts StackExperts(std::vector<TorchGated>& experts);

// The experts of one layer on this rank. `first` is the id of the first.
struct HeldExperts {
  int64_t first = 0;
  int64_t of = 0;  // All ranks' experts.
  const std::vector<TorchGated>& each;
  const StackedExperts& stacked;
  const DeviceKernels* kernels = nullptr;
  Activation activation = Activation::kSilu;
};

// The input of a gated layer's second product. `kernels` may be nullptr.
at::Tensor GatedRows(const TorchGated& layer, const at::Tensor& rows, const DeviceKernels* kernels,
                     Activation activation = Activation::kSilu);

// What these experts add to `rows`, [rows, hidden], by the way that fits.
at::Tensor AddExperts(const HeldExperts& experts, const Routes& routes, const at::Tensor& rows);

at::Tensor AddByLoop(const HeldExperts& experts, const Routes& routes, const at::Tensor& rows);

// Whether this build's libtorch has grouped products: from 2.10 on.
bool HasGroupedProducts();
// Whether AddGrouped is the way: bfloat16 on a GPU for which libtorch has a kernel, in rows of
// whole 16 bytes.
bool GroupedFits(const StackedExperts& stacked, const DeviceKernels* kernels);
// Rounds each expert's output and its product with the share, as the loop does, but adds a row's
// products in float32 and in the order of the row's routes: the loop rounds each sum, and adds in
// the order of ids. Equal inputs give equal bits.
at::Tensor AddGrouped(const HeldExperts& experts, const Routes& routes, const at::Tensor& rows);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_TORCH_EXPERTS_H_
