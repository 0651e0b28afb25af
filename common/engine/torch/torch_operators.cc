#include "common/engine/torch/torch_operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <tuple>

namespace baton {

namespace {

// -infinity for experts of groups that are not kept.
at::Tensor KeepGroups(const Experts& experts, const at::Tensor& merits) {
  const at::Tensor groups = merits.view({merits.size(0), experts.groups, -1});
  const at::Tensor worth = experts.group_score == GroupScore::kSumOfTwo
                               ? std::get<0>(groups.topk(2, -1)).sum({-1})
                               : groups.amax({-1});
  const at::Tensor kept = std::get<1>(worth.topk(experts.groups_kept, -1));
  const at::Tensor others =
      at::zeros({merits.size(0), experts.groups}, worth.options()).scatter_(1, kept, 1).eq(0);
  return groups.masked_fill(others.unsqueeze(-1), -std::numeric_limits<float>::infinity())
      .view({merits.size(0), merits.size(1)});
}

}  // namespace

at::Tensor MultiplyRows(const DeviceKernels* kernels, const at::Tensor& rows,
                        const at::Tensor& weight, const at::Tensor& bias) {
  if (kernels != nullptr && kernels->Multiplies(rows, weight)) {
    return kernels->Multiply(rows, weight, bias);
  }
  return at::linear(rows, weight, bias);
}

Routes RouteRows(const Experts& experts, const at::Tensor& scores, const at::Tensor& bias) {
  constexpr double kTiny = 1e-20;  // All scores of the chosen may be 0.
  const bool sigmoid = experts.score == ExpertScore::kSigmoid;
  const at::Tensor worth =
      sigmoid ? at::sigmoid(scores.to(at::kFloat)) : at::softmax(scores, -1, at::kFloat);
  at::Tensor merits = bias.defined() ? worth + bias : worth;
  if (experts.groups > experts.groups_kept) merits = KeepGroups(experts, merits);
  Routes routes;
  routes.ids = std::get<1>(merits.topk(experts.active, -1));
  routes.shares = worth.gather(-1, routes.ids);
  if (experts.normalise) {
    const at::Tensor sum = routes.shares.sum({-1}, /*keepdim=*/true);
    routes.shares = routes.shares / (sigmoid ? sum + kTiny : sum);
  }
  if (experts.scaling != 1) routes.shares = routes.shares * experts.scaling;
  return routes;
}

ExpertRuns SortRoutes(const Routes& routes, int64_t experts) {
  const at::Tensor ids = routes.ids.flatten();
  const at::Tensor order = at::argsort(ids, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor counts =
      ids.unsqueeze(1).eq(at::arange(experts, ids.options())).sum({0}).to(at::kCPU);
  ExpertRuns runs;
  runs.rows = order.div(routes.ids.size(1), "floor");
  runs.shares = routes.shares.flatten().index_select(0, order).unsqueeze(1);
  runs.begin.push_back(0);
  for (int64_t id = 0; id < experts; ++id) {
    runs.begin.push_back(runs.begin.back() + counts.data_ptr<int64_t>()[id]);
  }
  return runs;
}

RouteGroups GroupRoutes(const Routes& routes, int64_t first, int64_t count, int64_t of) {
  RouteGroups result;
  at::Tensor groups = routes.ids.to(at::kShort);  // A GPU sorts short keys in fewer passes.
  if (count < of) {
    groups.sub_(first);
    result.elsewhere = groups.lt(0).logical_or_(groups.ge(count));
    groups.masked_fill_(result.elsewhere, count);
  }
  at::Tensor sorted;
  std::tie(sorted, result.order) =
      at::sort(groups.flatten(), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  result.ends = at::searchsorted(sorted, at::arange(count, sorted.options()), /*out_int32=*/true,
                                 /*right=*/true);
  return result;
}

}  // namespace baton
