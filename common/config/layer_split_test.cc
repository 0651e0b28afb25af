#include "common/config/layer_split.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/status.h"

namespace baton::config {
namespace {

TEST(LayerSplitTest, Splits) {
  struct Row {
    int64_t layers;
    int64_t pp_size;
    std::string partition;
    std::vector<LayerRange> expected;
  };
  const Row rows[] = {
      {6, 1, "", {{0, 6}}},
      {6, 2, "", {{0, 3}, {3, 6}}},
      {10, 3, "", {{0, 3}, {3, 6}, {6, 10}}},
      {11, 3, "", {{0, 3}, {3, 7}, {7, 11}}},
      {4, 4, "", {{0, 1}, {1, 2}, {2, 3}, {3, 4}}},
      {10, 3, "5,2,3", {{0, 5}, {5, 7}, {7, 10}}},
      {10, 3, "3, 3, 4", {{0, 3}, {3, 6}, {6, 10}}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.partition);
    const auto split = SplitLayers(row.layers, row.pp_size, row.partition);
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(*split, row.expected);
  }
}

TEST(LayerSplitTest, Refuses) {
  struct Row {
    int64_t layers;
    int64_t pp_size;
    std::string partition;
    std::string field;
  };
  const Row rows[] = {
      {6, 0, "", "pp_size"},
      {6, 7, "", "pp_size"},
      {6, -1, "", "pp_size"},
      {int64_t{1} << 40, 2, "", "layers"},
      {6, 2, "6", "pp_layer_partition"},
      {6, 2, "3,2", "pp_layer_partition"},
      {6, 2, "3,4", "pp_layer_partition"},
      {6, 2, "6,0", "pp_layer_partition"},
      {6, 2, "7,-1", "pp_layer_partition"},
      {6, 2, "3,x", "pp_layer_partition"},
      {6, 2, "3,3,", "pp_layer_partition"},
      {6, 2, "9223372036854775807,9223372036854775807", "pp_layer_partition"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.partition);
    const auto split = SplitLayers(row.layers, row.pp_size, row.partition);
    ASSERT_FALSE(split.ok());
    EXPECT_EQ(FieldOf(split.status()), row.field) << split.status();
    if (row.field == "layers") continue;
    const auto decode = SplitLayers(row.layers, row.pp_size, row.partition, kDecodeSplit);
    EXPECT_EQ(FieldOf(decode.status()), "decode_" + row.field) << decode.status();
  }
}

// So many layers that take a stage the same.
std::vector<std::vector<double>> Alike(int64_t layers, const std::vector<double>& layer_us) {
  std::vector<std::vector<double>> all;
  all.reserve(layer_us.size());
  for (const double us : layer_us) all.emplace_back(static_cast<size_t>(layers), us);
  return all;
}

TEST(LayerSplitTest, LayersOfTwoKindsAreBalancedByTheirTimes) {
  std::vector<double> layers(12, 2.0);  // Nine sparse layers after three dense ones.
  std::fill_n(layers.begin(), 3, 1.0);
  EXPECT_EQ(BalanceLayers({layers, layers, layers}), "5,3,4");
  std::fill_n(layers.begin(), 3, 4.0);
  EXPECT_EQ(BalanceLayers({layers, layers, layers}), "2,4,6");
  EXPECT_EQ(BalanceLayers({{9.0, 1.0, 1.0}, {9.0, 1.0, 1.0}}), "1,2");
}

TEST(LayerSplitTest, BalancesMeasuredStages) {
  struct Row {
    int64_t layers;
    std::vector<double> layer_us;
    std::string partition;
  };
  const Row rows[] = {
      {1, {7}, "1"},
      {6, {1, 1, 1}, "2,2,2"},
      {7, {1, 1, 1}, "2,2,3"},
      {8, {1, 1, 1}, "2,3,3"},
      {7, {1.00, 1.04, 0.98}, "2,2,3"},  // No more than they are measured to within.
      {12, {1, 2}, "8,4"},
      {12, {2, 1}, "4,8"},
      {9, {3, 1, 1}, "1,4,4"},
      {3, {100, 1, 100}, "1,1,1"},  // Every stage has one.
      {10, {1, 1000}, "9,1"},
      {64, {1e-6, 2e-6, 1e-6, 1e-6}, "19,7,19,19"},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(BalanceLayers(Alike(row.layers, row.layer_us)), row.partition);
    EXPECT_TRUE(
        SplitLayers(row.layers, static_cast<int64_t>(row.layer_us.size()), row.partition).ok());
  }
}

// Beside every partition that there is.
TEST(LayerSplitTest, NoPartitionHasAFasterSlowestStage) {
  const std::vector<double> layer_us = {1, 1.7, 0.6};
  for (int64_t layers = 3; layers < 30; ++layers) {
    const auto slowest = [&](int64_t a, int64_t b, int64_t c) {
      return std::max({static_cast<double>(a) * layer_us[0], static_cast<double>(b) * layer_us[1],
                       static_cast<double>(c) * layer_us[2]});
    };
    double best = 1e300;
    for (int64_t a = 1; a < layers - 1; ++a) {
      for (int64_t b = 1; a + b < layers; ++b) best = std::min(best, slowest(a, b, layers - a - b));
    }
    const auto shares = ParsePartition(BalanceLayers(Alike(layers, layer_us)));
    ASSERT_TRUE(shares.ok());
    EXPECT_DOUBLE_EQ(slowest((*shares)[0], (*shares)[1], (*shares)[2]), best) << layers;
  }
}

}  // namespace
}  // namespace baton::config
