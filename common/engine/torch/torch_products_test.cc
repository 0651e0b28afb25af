// Products of few rows, and gated ones, beside double precision, on the device that
// BATON_TEST_DEVICE names: on a GPU by Baton's kernel (tools/gpu/session), elsewhere by libtorch.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "common/engine/torch/torch_device.h"
#include "common/engine/torch/torch_experts.h"
#include "common/engine/torch/torch_operators.h"

namespace baton {
namespace {

struct Size {
  int64_t columns;
  int64_t depth;
};

// A row's error as a part of its length. Rounding to bfloat16 gives 0.002.
void ExpectClose(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor wide = actual.to(at::kCPU, at::kDouble);
  ASSERT_EQ(wide.sizes(), expected.sizes());
  const at::Tensor errors = (wide - expected).norm(2, -1) / expected.norm(2, -1);
  EXPECT_LT(errors.max().item<double>(), 0.01);
}

class TorchProductsTest : public testing::TestWithParam<Size> {
 protected:
  TorchProductsTest() {
    const char* const name = std::getenv("BATON_TEST_DEVICE");
    device_ = std::make_unique<TorchDevice>(*TorchDevice::Open(name == nullptr ? "cpu" : name));
    kernels_ = device_->is_host() ? nullptr : CreateDeviceKernels(*device_, {});
    at::manual_seed(5);
  }
  at::Tensor Random(at::IntArrayRef sizes) const {
    return at::randn(sizes).to(device_->device(), at::kBFloat16);
  }

  const c10::InferenceMode inference_;
  std::unique_ptr<TorchDevice> device_;
  std::unique_ptr<DeviceKernels> kernels_;
};

at::Tensor Wide(const at::Tensor& tensor) { return tensor.to(at::kCPU, at::kDouble); }

TEST_P(TorchProductsTest, FewRowsAreMultiplied) {
  const auto [columns, depth] = GetParam();
  const at::Tensor weight = Random({columns, depth});
  const at::Tensor bias = Random({columns}) * 30;
  for (const int64_t count : {1, 3, 8, 9}) {
    SCOPED_TRACE(count);
    const at::Tensor rows = Random({count, depth});
    const at::Tensor expected = at::linear(Wide(rows), Wide(weight));
    ExpectClose(MultiplyRows(kernels_.get(), rows, weight, {}), expected);
    ExpectClose(MultiplyRows(kernels_.get(), rows, weight, bias), expected + Wide(bias));
  }
}

TEST_P(TorchProductsTest, GatesAreAppliedToTheOtherHalf) {
  const auto [columns, depth] = GetParam();
  TorchGated layer;
  layer.gate_up = Random({2 * columns, depth}) / std::sqrt(static_cast<double>(depth));
  for (const int64_t count : {1, 5, 8, 9}) {
    SCOPED_TRACE(count);
    const at::Tensor rows = Random({count, depth});
    const at::Tensor both = at::linear(Wide(rows), Wide(layer.gate_up));
    const at::Tensor expected =
        at::silu(both.narrow(1, 0, columns)) * both.narrow(1, columns, columns);
    ExpectClose(GatedRows(layer, rows, kernels_.get()), expected);
  }
}

// Strips that are whole or not, sums that one warp or a cluster of blocks shares.
INSTANTIATE_TEST_SUITE_P(Sizes, TorchProductsTest,
                         testing::Values(Size{8, 32}, Size{40, 96}, Size{1000, 512},
                                         Size{512, 4096}, Size{24, 14336}, Size{5000, 1056}),
                         [](const auto& info) {
                           return std::to_string(info.param.columns) + "by" +
                                  std::to_string(info.param.depth);
                         });

}  // namespace
}  // namespace baton
