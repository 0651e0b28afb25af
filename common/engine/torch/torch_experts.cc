#include "common/engine/torch/torch_experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <torch/version.h>

#include <algorithm>
#include <cstddef>

#include "common/base/check.h"
#include "common/engine/requirements.h"

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 10)
#define BATON_GROUPED_PRODUCTS 1
#include <ATen/ops/_grouped_mm.h>
#else
#define BATON_GROUPED_PRODUCTS 0
#endif

namespace baton {
namespace {

constexpr int64_t kEight = 8;  // Columns of 16 bytes.

at::Tensor Gate(const at::Tensor& gate_up, const DeviceKernels* kernels, Activation activation) {
  const int64_t columns = gate_up.size(1) / 2;
  if (activation == Activation::kGeluTanh) {
    return at::gelu(gate_up.narrow(1, 0, columns), "tanh") * gate_up.narrow(1, columns, columns);
  }
  if (kernels != nullptr && gate_up.scalar_type() == at::kBFloat16 && columns % kEight == 0) {
    return kernels->Gate(gate_up);
  }
  return at::silu(gate_up.narrow(1, 0, columns)) * gate_up.narrow(1, columns, columns);
}

at::Tensor Stack(std::vector<TorchGated>& experts, at::Tensor TorchGated::*matrix) {
  const at::Tensor& first = experts.front().*matrix;
  const auto count = static_cast<int64_t>(experts.size());
  at::Tensor stacked = at::empty({count, first.size(0), first.size(1)}, first.options());
  for (int64_t i = 0; i < count; ++i) {
    at::Tensor& own = experts[static_cast<size_t>(i)].*matrix;
    stacked.select(0, i).copy_(own);
    own = stacked.select(0, i);
  }
  return stacked;
}

// [rows of all groups, k] times one matrix [n, k] for each group; `ends` are the groups' last rows
// and one. Rows behind the last group's are not written.
at::Tensor MultiplyGroups(const at::Tensor& rows, const at::Tensor& matrices,
                          const at::Tensor& ends) {
#if BATON_GROUPED_PRODUCTS
  return at::_grouped_mm(rows, matrices.transpose(1, 2), ends);
#else
  BATON_CHECK(false) << "no grouped products in libtorch " << TORCH_VERSION;
  return {};
#endif
}

// Rows that are few enough to be multiplied together.
at::Tensor AddGroupedPart(const HeldExperts& experts, const Routes& routes,
                          const at::Tensor& rows) {
  const auto held = static_cast<int64_t>(experts.each.size());
  const RouteGroups groups = GroupRoutes(routes, experts.first, held, experts.of);
  const int64_t active = routes.ids.size(1);
  const at::Tensor taken = rows.index_select(0, groups.order.div(active, "floor"));
  const at::Tensor inner = Gate(MultiplyGroups(taken, experts.stacked.gate_up, groups.ends),
                                experts.kernels, experts.activation);
  const at::Tensor given = MultiplyGroups(inner, experts.stacked.down, groups.ends);
  // The order is a permutation, so that every row is written once.
  at::Tensor added = at::empty_like(given).index_copy_(0, groups.order, given);
  added = added.view({rows.size(0), active, added.size(1)});
  // Not a share of 0, which a NaN in rows that were not written would survive.
  if (groups.elsewhere.defined()) added.masked_fill_(groups.elsewhere.unsqueeze(2), 0);
  return added.mul_(routes.shares.to(added.scalar_type()).unsqueeze(2)).sum({1});
}

}  // namespace

StackedExperts StackExperts(std::vector<TorchGated>& experts) {
  StackedExperts stacked;
  if (experts.empty() || experts.front().gate_up_bias.defined() ||
      experts.front().down_bias.defined()) {
    return stacked;
  }
  stacked.gate_up = Stack(experts, &TorchGated::gate_up);
  stacked.down = Stack(experts, &TorchGated::down);
  return stacked;
}

at::Tensor GatedRows(const TorchGated& layer, const at::Tensor& rows, const DeviceKernels* kernels,
                     Activation activation) {
  if (kernels != nullptr && !layer.gate_up_bias.defined() && activation == Activation::kSilu &&
      kernels->Multiplies(rows, layer.gate_up)) {
    return kernels->MultiplyGated(rows, layer.gate_up);
  }
  return Gate(at::linear(rows, layer.gate_up, layer.gate_up_bias), kernels, activation);
}

at::Tensor AddExperts(const HeldExperts& experts, const Routes& routes, const at::Tensor& rows) {
  return GroupedFits(experts.stacked, experts.kernels) ? AddGrouped(experts, routes, rows)
                                                       : AddByLoop(experts, routes, rows);
}

at::Tensor AddByLoop(const HeldExperts& experts, const Routes& routes, const at::Tensor& rows) {
  const ExpertRuns runs = SortRoutes(routes, experts.of);
  at::Tensor sum = at::zeros({rows.size(0), rows.size(1)}, rows.options());
  auto id = static_cast<size_t>(experts.first);
  for (const TorchGated& expert : experts.each) {
    const int64_t begin = runs.begin[id++];
    const int64_t count = runs.begin[id] - begin;
    if (count == 0) continue;
    const at::Tensor own = runs.rows.narrow(0, begin, count);
    const at::Tensor added = at::linear(
        GatedRows(expert, rows.index_select(0, own), experts.kernels, experts.activation),
        expert.down, expert.down_bias);
    sum.index_add_(0, own, added * runs.shares.narrow(0, begin, count).to(added.scalar_type()));
  }
  return sum;
}

bool HasGroupedProducts() { return BATON_GROUPED_PRODUCTS != 0; }

bool GroupedFits(const StackedExperts& stacked, const DeviceKernels* kernels) {
  return HasGroupedProducts() && kernels != nullptr && kernels->has_grouped_products() &&
         stacked.gate_up.defined() && stacked.gate_up.scalar_type() == at::kBFloat16 &&
         stacked.gate_up.size(2) % kEight == 0 && stacked.down.size(2) % kEight == 0;
}

at::Tensor AddGrouped(const HeldExperts& experts, const Routes& routes, const at::Tensor& rows) {
  const int64_t all = rows.size(0);
  const int64_t together = std::max<int64_t>(1, kTorchGroupedRows / routes.ids.size(1));
  if (all <= together) return AddGroupedPart(experts, routes, rows);
  std::vector<at::Tensor> parts;
  parts.reserve(static_cast<size_t>((all + together - 1) / together));
  for (int64_t begin = 0; begin < all; begin += together) {
    const int64_t count = std::min(together, all - begin);
    parts.push_back(AddGroupedPart(
        experts, {routes.shares.narrow(0, begin, count), routes.ids.narrow(0, begin, count)},
        rows.narrow(0, begin, count)));
  }
  return at::cat(parts);
}

}  // namespace baton
