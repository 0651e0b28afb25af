// Operators of the layers that need no stage: products, and the routes to experts. Part of the
// plugin.
#ifndef COMMON_ENGINE_TORCH_TORCH_OPERATORS_H_
#define COMMON_ENGINE_TORCH_TORCH_OPERATORS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "common/engine/torch/kernels/device_kernels.h"
#include "common/model/model_config.h"

namespace baton {

// rows * weight^T + bias, which may be undefined, as `kernels`, which may be nullptr.
at::Tensor MultiplyRows(const DeviceKernels* kernels, const at::Tensor& rows,
                        const at::Tensor& weight, const at::Tensor& bias);

// The experts that rows go to, and the weights of what they add.
struct Routes {
  at::Tensor shares;  // [rows, active] float32
  at::Tensor ids;     // The same.
};

// The same routes by expert: those of an expert are one run.
struct ExpertRuns {
  at::Tensor rows;             // [rows * active] In the order of the experts' ids.
  at::Tensor shares;           // [rows * active, 1] float32
  std::vector<int64_t> begin;  // The first of each expert's run, and the end of the last.
};

// On a GPU the host waits for it, once.
ExpertRuns SortRoutes(const Routes& routes, int64_t experts);

// Routes in groups, one for each of a run of experts. Nothing of it is known to the host.
struct RouteGroups {
  // [rows * active] The routes in the order of the groups; those to other experts come last.
  at::Tensor order;
  at::Tensor ends;  // [experts of the run] int32: where each group ends in that order.
  at::Tensor
      elsewhere;  // [rows, active] bool: those others; undefined if the run is of all experts.
};

// By the experts [first, first + count) of `of`.
RouteGroups GroupRoutes(const Routes& routes, int64_t first, int64_t count, int64_t of);

// `scores` is [rows, experts]; `bias`, [experts] float32, is undefined if the router has none.
Routes RouteRows(const Experts& experts, const at::Tensor& scores, const at::Tensor& bias);

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_TORCH_OPERATORS_H_
