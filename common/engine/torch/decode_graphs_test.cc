// Steps of single tokens as graphs that a CPU computes anew.
#include "common/engine/torch/decode_graphs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace baton {
namespace {

constexpr int kMostRows = 4;
constexpr int64_t kPageSize = 4;

// Graphs alone.
class Recomputing final : public DeviceKernels {
 public:
  bool fits_heads() const override { return false; }
  bool has_cudnn() const override { return false; }
  bool has_grouped_products() const override { return false; }
  Normed AddNorm(const at::Tensor&, const at::Tensor&, const at::Tensor&, double) const override {
    return {};
  }
  at::Tensor Gate(const at::Tensor&) const override { return {}; }
  bool Multiplies(const at::Tensor&, const at::Tensor&) const override { return false; }
  at::Tensor Multiply(const at::Tensor&, const at::Tensor&, const at::Tensor&) const override {
    return {};
  }
  at::Tensor MultiplyGated(const at::Tensor&, const at::Tensor&) const override { return {}; }
  at::Tensor Angles(const at::Tensor&, const at::Tensor&, double) const override { return {}; }
  Heads PlaceHeads(const at::Tensor&, const Placing&) const override { return {}; }
  at::Tensor AttendPages(const at::Tensor&, const PagedRows&, const at::Tensor&, const at::Tensor&,
                         double, int64_t) const override {
    return {};
  }
  void Merge(const Part&, Part&) const override {}
  std::unique_ptr<StepGraph> Capture(const std::function<void()>& work) override {
    return std::make_unique<Graph>(work);
  }
  std::unique_ptr<QueuePoint> Mark() const override { return nullptr; }

 private:
  class Graph final : public StepGraph {
   public:
    explicit Graph(std::function<void()> work) : work_(std::move(work)) {}
    void Replay() override { work_(); }

   private:
    const std::function<void()> work_;
  };
};

class DecodeGraphsTest : public testing::Test {
 protected:
  // Tells each row's token, its position, where it is stored, and the sum of the pages it sees.
  static at::Tensor Compute(TorchStep& step, const at::Tensor&) {
    const int64_t rows = step.tokens.size(0);
    at::Tensor pages = at::zeros({rows}, at::kLong);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t seen = (step.paged.lengths[row].item<int64_t>() + kPageSize - 1) / kPageSize;
      pages[row] = step.paged.ids.narrow(0, step.paged.starts[row].item<int64_t>(), seen).sum();
    }
    return at::stack({step.tokens, step.positions, step.page, step.slot, pages}, 1);
  }
  // A token behind `prefix` others. `follows` is SequenceSlice's.
  SequenceSlice Row(int32_t token, int prefix, std::optional<int> follows = std::nullopt) {
    tokens_.push_back(std::make_unique<int32_t>(token));
    SequenceSlice slice;
    slice.tokens = std::span<const int32_t>(tokens_.back().get(), 1);
    slice.token_count = 1;
    slice.prefix_length = prefix;
    slice.pages = kPages;
    slice.follows = follows;
    return slice;
  }
  std::vector<std::vector<int64_t>> Run(std::vector<SequenceSlice> rows,
                                        const std::vector<int64_t>& drawn = {}) {
    Batch batch;
    batch.slices = std::move(rows);
    EXPECT_TRUE(graphs_.Takes(batch));
    const at::Tensor output = graphs_.Run(batch, {}, at::tensor(drawn, at::kLong));
    std::vector<std::vector<int64_t>> told;
    for (int64_t row = 0; row < output.size(0); ++row) {
      const at::Tensor numbers = output[row].contiguous();
      told.emplace_back(numbers.data_ptr<int64_t>(), numbers.data_ptr<int64_t>() + numbers.numel());
    }
    return told;
  }

  static constexpr int32_t kPages[] = {7, 5, 9};
  std::vector<std::unique_ptr<int32_t>> tokens_;
  const TorchDevice device_ = *TorchDevice::Open("cpu");
  Recomputing kernels_;
  DecodeGraphs graphs_{device_, kernels_, {kMostRows, kPageSize, 0, 0}, Compute};
};

using Told = std::vector<std::vector<int64_t>>;

TEST_F(DecodeGraphsTest, RowsHaveTheirTokensPositionsAndPages) {
  EXPECT_EQ(Run({Row(11, 0), Row(12, 5), Row(13, 8)}),
            (Told{{11, 0, 7, 0, 7}, {12, 5, 5, 1, 12}, {13, 8, 9, 0, 21}}));
  EXPECT_EQ(Run({Row(14, 3)}), (Told{{14, 3, 7, 3, 7}}));
}

TEST_F(DecodeGraphsTest, RowsFollowTheDrawsOfTheStepBefore) {
  EXPECT_EQ(Run({Row(0, 1, 2), Row(12, 2), Row(0, 3, 0)}, {21, 22, 23}),
            (Told{{23, 1, 7, 1, 7}, {12, 2, 7, 2, 7}, {21, 3, 7, 3, 7}}));
  // What was drawn for more rows than there are now, and what could not be drawn.
  EXPECT_EQ(Run({Row(0, 1, 3), Row(0, 2, 1)}, {21, -1, 23, 24}),
            (Told{{24, 1, 7, 1, 7}, {0, 2, 7, 2, 7}}));
  EXPECT_EQ(Run({Row(15, 2)}, {21}), (Told{{15, 2, 7, 2, 7}}));
}

TEST_F(DecodeGraphsTest, TakesSingleTokensAloneAndNotTooMany) {
  const auto takes = [&](std::vector<SequenceSlice> rows) {
    Batch batch;
    batch.slices = std::move(rows);
    return graphs_.Takes(batch);
  };
  EXPECT_FALSE(takes({}));
  EXPECT_TRUE(takes(std::vector<SequenceSlice>(kMostRows, Row(1, 1))));
  EXPECT_FALSE(takes(std::vector<SequenceSlice>(kMostRows + 1, Row(1, 1))));
  SequenceSlice longer = Row(1, 1);
  longer.token_count = 2;
  EXPECT_FALSE(takes({longer}));
  SequenceSlice telling = Row(1, 1);
  telling.on_logits = [](int, std::span<const float>) {};
  EXPECT_FALSE(takes({telling}));
}

TEST_F(DecodeGraphsTest, SizesDouble) {
  EXPECT_EQ(DecodeGraphs::Sizes(0), std::vector<int>{});
  EXPECT_EQ(DecodeGraphs::Sizes(1), std::vector<int>{1});
  EXPECT_EQ(DecodeGraphs::Sizes(6), (std::vector<int>{1, 2, 4, 6}));
  EXPECT_EQ(DecodeGraphs::Sizes(8), (std::vector<int>{1, 2, 4, 8}));
}

}  // namespace
}  // namespace baton
