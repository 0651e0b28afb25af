#include "services/decode/core/writers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/base/status.h"

namespace baton::decode {
namespace {

const std::vector<KvWriter> kWriters{{{"prefill-0", 1}, {0, 2}}, {{"prefill-1", 2}, {2, 6}}};

absl::Status Check(const std::vector<KvWriter>& writers) {
  return CheckWriters(writers, /*layers=*/6, /*kv_heads=*/1, /*ranks=*/1);
}

TEST(WritersTest, MayBeInAnyOrder) {
  std::vector<KvWriter> writers = kWriters;
  EXPECT_TRUE(Check(writers).ok());
  std::reverse(writers.begin(), writers.end());
  EXPECT_TRUE(Check(writers).ok());
}

TEST(WritersTest, CoverEveryLayerOnce) {
  const std::vector<std::vector<LayerRange>> bad_covers{
      {},        {{0, 2}},         {{0, 2}, {3, 6}}, {{0, 3}, {2, 6}},        {{0, 7}},
      {{-1, 6}}, {{0, 6}, {0, 6}}, {{0, 0}, {0, 6}}, {{0, 2}, {2, 2}, {2, 6}}};
  for (const auto& ranges : bad_covers) {
    std::vector<KvWriter> writers;
    writers.reserve(ranges.size());
    for (const LayerRange& range : ranges) writers.push_back({{"p", 1}, range});
    EXPECT_EQ(FieldOf(Check(writers)), "writers");
  }
}

TEST(WritersTest, AreSomebody) {
  std::vector<KvWriter> nameless = kWriters;
  nameless[1].instance.id.clear();
  EXPECT_EQ(FieldOf(Check(nameless)), "writers");
  std::vector<KvWriter> lifeless = kWriters;
  lifeless[0].instance.incarnation = 0;
  EXPECT_EQ(FieldOf(Check(lifeless)), "writers");
}

// Two KV heads. A row: the writers as {rank, ranks} by stage, and the number of decode ranks.
TEST(WritersTest, WriteEveryHeadOfEveryLayerOnce) {
  struct Row {
    std::vector<TensorRank> first;   // Ranks that write layers [0, 2).
    std::vector<TensorRank> second;  // And [2, 6).
    bool right;
    int decode_ranks = 1;
  };
  const std::vector<Row> rows{
      {{{}}, {{}}, true},
      {{{0, 2}, {1, 2}}, {{0, 2}, {1, 2}}, true},
      {{{1, 2}, {0, 2}}, {{}}, true},
      {{{0, 4}, {2, 4}}, {{2, 4}, {0, 4}}, true},   // Copies of the same heads: 0 and 1, 2 and 3.
      {{{0, 4}, {2, 4}}, {{1, 4}, {2, 4}}, false},  // Rank 1 would write nothing.
      {{{0, 2}}, {{}}, false},
      {{{0, 2}, {0, 2}}, {{}}, false},
      {{{0, 2}, {1, 2}, {1, 2}}, {{}}, false},
      {{{0, 4}, {1, 4}}, {{}}, false},
      {{{}, {}}, {{}}, false},
      {{{1, 2}}, {{}}, false},
      {{{0, 2}, {2, 4}}, {{}}, false},  // One stage, two numbers of ranks.
      {{{0, 2}, {1, 4}}, {{}}, false},
      {{{0, 3}, {1, 3}}, {{}}, false},  // Three can't share two.
      {{{}}, {{0, 2}, {1, 2}}, true, 2},
      {{{0, 4}, {2, 4}}, {{}}, true, 2},
      {{{0, 4}, {1, 4}, {2, 4}, {3, 4}}, {{}}, false, 2},
      {{{0, 4}, {1, 4}, {2, 4}, {3, 4}}, {{0, 2}, {1, 2}}, true, 4},  // To each copy from its own.
      {{{0, 4}, {2, 4}}, {{}}, false, 4},
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<KvWriter> writers;
    for (const TensorRank rank : rows[i].first) writers.push_back({{"p", 1}, {0, 2}, rank});
    for (const TensorRank rank : rows[i].second) writers.push_back({{"q", 1}, {2, 6}, rank});
    const absl::Status status = CheckWriters(writers, 6, 2, rows[i].decode_ranks);
    EXPECT_EQ(status.ok(), rows[i].right) << i << ": " << status;
    if (!rows[i].right) {
      EXPECT_EQ(FieldOf(status), "writers") << i;
    }
  }
}

}  // namespace
}  // namespace baton::decode
