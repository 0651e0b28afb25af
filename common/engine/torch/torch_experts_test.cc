// Experts by grouped products beside the loop over them, and both beside each row alone in double
// precision; on the CPU, where libtorch's grouped products take any type, and on the device that
// BATON_TEST_DEVICE names (tools/gpu/session).
#include "common/engine/torch/torch_experts.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "common/engine/requirements.h"
#include "common/engine/torch/torch_device.h"

namespace baton {
namespace {

constexpr int64_t kExperts = 6;
constexpr int64_t kHidden = 32;
constexpr int64_t kInner = 16;

at::Device TestDevice() {
  const char* const device = std::getenv("BATON_TEST_DEVICE");
  return at::Device(device == nullptr ? "cpu" : device);
}

class TorchExpertsTest : public testing::TestWithParam<c10::ScalarType> {
 protected:
  TorchExpertsTest() {
    at::manual_seed(3);
    for (int64_t i = 0; i < kExperts; ++i) {
      experts_.push_back({at::randn({2 * kInner, kHidden}, options_),
                          {},
                          at::randn({kHidden, kInner}, options_),
                          {}});
    }
    alone_ = experts_;
    stacked_ = StackExperts(experts_);
  }

  at::Tensor Rows(int64_t count) const { return at::randn({count, kHidden}, options_); }
  Routes RoutesOf(const at::Tensor& ids) const {
    return {at::rand(ids.sizes(), at::TensorOptions(TestDevice())), ids.to(TestDevice())};
  }
  // Distinct experts for each row, as a router chooses them.
  Routes RandomRoutes(int64_t rows, int64_t active) const {
    return RoutesOf(
        at::argsort(at::rand({rows, kExperts}), int64_t{-1}, false).narrow(1, 0, active));
  }

  // What experts [first, first + count) add, row by row.
  at::Tensor Expected(const Routes& routes, const at::Tensor& rows, int64_t first,
                      int64_t count) const {
    at::Tensor sum = at::zeros({rows.size(0), kHidden}, at::kDouble);
    const at::Tensor wide = rows.to(at::kCPU, at::kDouble);
    for (int64_t expert = first; expert < first + count; ++expert) {
      const TorchGated& weights = alone_[static_cast<size_t>(expert)];
      const at::Tensor gate_up = at::linear(wide, weights.gate_up.to(at::kCPU, at::kDouble));
      const at::Tensor inner =
          at::silu(gate_up.narrow(1, 0, kInner)) * gate_up.narrow(1, kInner, kInner);
      const at::Tensor share = (routes.shares * routes.ids.eq(expert)).sum({1}, /*keepdim=*/true);
      sum += at::linear(inner, weights.down.to(at::kCPU, at::kDouble)) *
             share.to(at::kCPU, at::kDouble);
    }
    return sum;
  }

  void ExpectBothWays(const Routes& routes, const at::Tensor& rows, int64_t first = 0,
                      int64_t count = kExperts) const {
    const std::vector<TorchGated> each(experts_.begin() + first, experts_.begin() + first + count);
    const StackedExperts stacked = {stacked_.gate_up.narrow(0, first, count),
                                    stacked_.down.narrow(0, first, count)};
    const HeldExperts held = {first, kExperts, each, stacked, kernels_.get()};
    const at::Tensor expected = Expected(routes, rows, first, count);
    ExpectClose(AddByLoop(held, routes, rows), expected);
    ExpectClose(AddExperts(held, routes, rows), expected);
    if (!HasGroupedProducts()) return;
    const at::Tensor grouped = AddGrouped(held, routes, rows);
    EXPECT_EQ(grouped.scalar_type(), GetParam());
    ExpectClose(grouped, expected);
    EXPECT_TRUE(at::equal(AddGrouped(held, routes, rows), grouped)) << "equal inputs, other bits";
  }

  static void ExpectClose(const at::Tensor& actual, const at::Tensor& expected) {
    ASSERT_EQ(actual.sizes(), expected.sizes());
    const double bound = GetParam() == at::kFloat ? 1e-5 : 2e-2;
    const at::Tensor apart = (actual.to(at::kCPU, at::kDouble) - expected).abs().max();
    // Not LT: a NaN must fail.
    EXPECT_TRUE(apart.item<double>() <= bound * (1 + expected.abs().max().item<double>()))
        << apart.item<double>() << " of " << expected.abs().max().item<double>();
  }

  const c10::InferenceMode inference_;
  const at::TensorOptions options_ = at::TensorOptions(GetParam()).device(TestDevice());
  // nullptr on a CPU. Heads are no matter here.
  const std::unique_ptr<DeviceKernels> kernels_ =
      CreateDeviceKernels(TorchDevice::Open(TestDevice().str()).value(), {});
  std::vector<TorchGated> experts_, alone_;
  StackedExperts stacked_;
};

INSTANTIATE_TEST_SUITE_P(Types, TorchExpertsTest, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

TEST_P(TorchExpertsTest, StackedMatricesAreTheExpertsOwn) {
  for (int64_t i = 0; i < kExperts; ++i) {
    const auto place = static_cast<size_t>(i);
    EXPECT_EQ(experts_[place].gate_up.data_ptr(), stacked_.gate_up.select(0, i).data_ptr());
    EXPECT_EQ(experts_[place].down.data_ptr(), stacked_.down.select(0, i).data_ptr());
    EXPECT_TRUE(at::equal(experts_[place].gate_up, alone_[place].gate_up));
    EXPECT_TRUE(at::equal(experts_[place].down, alone_[place].down));
  }
}

TEST_P(TorchExpertsTest, BiasedExpertsAreNotStacked) {
  std::vector<TorchGated> biased = alone_;
  for (TorchGated& expert : biased) expert.down_bias = at::zeros({kHidden}, options_);
  EXPECT_FALSE(StackExperts(biased).gate_up.defined());
  std::vector<TorchGated> none;
  EXPECT_FALSE(StackExperts(none).gate_up.defined());
}

TEST_P(TorchExpertsTest, RowsGoThroughTheirExperts) {
  for (const int64_t rows : {1, 2, 37}) {
    for (const int64_t active : {int64_t{1}, int64_t{3}, kExperts}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, " << active << " active");
      ExpectBothWays(RandomRoutes(rows, active), Rows(rows));
    }
  }
}

TEST_P(TorchExpertsTest, ExpertsWithoutRowsAddNothing) {
  ExpectBothWays(RoutesOf(at::tensor({4, 1, 1, 4, 4, 1}, at::kLong).view({3, 2})), Rows(3));
  for (const int64_t expert : {int64_t{0}, int64_t{3}, kExperts - 1}) {
    SCOPED_TRACE(testing::Message() << "all rows to " << expert);
    ExpectBothWays(RoutesOf(at::full({9, 1}, expert, at::kLong)), Rows(9));
  }
}

// What libtorch does not write is NaN then, as memory may be.
class UnwrittenIsNan {
 public:
  UnwrittenIsNan() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true); }
  ~UnwrittenIsNan() { at::globalContext().setDeterministicAlgorithms(false, false); }
};

TEST_P(TorchExpertsTest, ARankAddsItsOwnExpertsAlone) {
  const UnwrittenIsNan unwritten;
  const Routes routes = RandomRoutes(40, 2);
  const at::Tensor rows = Rows(40);
  for (const int64_t first : {0, 2, 4}) {
    SCOPED_TRACE(first);
    ExpectBothWays(routes, rows, first, 2);
  }
  ExpectBothWays(RoutesOf(at::full({5, 1}, 5, at::kLong)), Rows(5), 2, 3);  // None of its own.
}

TEST_P(TorchExpertsTest, MoreRowsThanGoTogetherAreThoseOfTheirParts) {
  const int64_t rows = kTorchGroupedRows / 2 + 3;
  ExpectBothWays(RandomRoutes(rows, 2), Rows(rows));
}

TEST_P(TorchExpertsTest, GroupedProductsAreForBfloat16OnGpusThatHaveAKernel) {
  const bool has = kernels_ != nullptr && kernels_->has_grouped_products();
  EXPECT_EQ(GroupedFits(stacked_, kernels_.get()),
            HasGroupedProducts() && has && GetParam() == at::kBFloat16);
  EXPECT_FALSE(GroupedFits(stacked_, nullptr));
  EXPECT_FALSE(GroupedFits({}, kernels_.get()));
}

}  // namespace
}  // namespace baton
