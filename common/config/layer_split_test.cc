#include "common/config/layer_split.h"

#include <gtest/gtest.h>

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
  }
}

}  // namespace
}  // namespace baton::config
