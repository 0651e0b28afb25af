// Attention in blocks beside attention over all keys at once, in double precision.
#include "common/engine/torch/torch_step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/engine/torch/torch_attention.h"
#include "common/engine/torch/torch_fused_attention.h"
#include "common/engine/torch/torch_operators.h"

namespace baton {
namespace {

constexpr int64_t kPage = 4;
constexpr int64_t kHeads = 2;
constexpr int64_t kGroup = 3;
constexpr int64_t kDim = 8;
constexpr double kScale = 0.3;

// [kv_heads, group, rows, dim]; row i sees keys up to `first` + i, those of its window alone.
at::Tensor Dense(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                 int64_t first, int64_t window, double softcap = 0) {
  const at::Tensor row = at::arange(query.size(2)).unsqueeze(1) + first;
  const at::Tensor key = at::arange(keys.size(1)).unsqueeze(0);
  at::Tensor unseen = key.gt(row);
  if (window > 0) unseen = unseen.logical_or(key.le(row - window));
  at::Tensor scores =
      at::matmul(query.to(at::kDouble), keys.to(at::kDouble).transpose(1, 2).unsqueeze(1)) * kScale;
  if (softcap > 0) scores = (scores / softcap).tanh() * softcap;
  scores.masked_fill_(unseen, -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1), values.to(at::kDouble).unsqueeze(1)).to(at::kFloat);
}

void ExpectClose(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_LT((actual - expected).abs().max().item<float>(), 2e-5);
}

TEST(TorchAttentionTest, AChunkIsAsWithAMaskOverAll) {
  at::manual_seed(1);
  // Prefixes and chunks shorter and longer than a block of keys, at pages' edges and not.
  for (const int64_t prefix : {0, 3, 1024, 1501}) {
    for (const int64_t tokens : {2, 1100}) {
      const at::Tensor keys = at::randn({kHeads, prefix + tokens, kDim});
      const at::Tensor values = at::randn({kHeads, prefix + tokens, kDim});
      const at::Tensor query = at::randn({kHeads, kGroup, tokens, kDim});
      for (const int64_t window : {0, 1, 5, 600, 2000}) {
        SCOPED_TRACE(testing::Message() << prefix << " " << tokens << " " << window);
        const double softcap = window == 5 || window == 2000 ? 0.7 : 0;
        int64_t lowest = prefix;
        const at::Tensor actual =
            AttendChunk({prefix, tokens, window, kPage, {kScale, softcap}}, query,
                        {keys.narrow(1, prefix, tokens), values.narrow(1, prefix, tokens)},
                        [&](int64_t begin, int64_t end) {
                          EXPECT_EQ(begin % kPage, 0);
                          EXPECT_LE(end, prefix);
                          lowest = std::min(lowest, begin);
                          return KeyBlock{keys.narrow(1, begin, end - begin),
                                          values.narrow(1, begin, end - begin)};
                        });
        ExpectClose(actual, Dense(query, keys, values, prefix, window, softcap));
        const int64_t seen = window > 0 ? window : prefix + 1;
        EXPECT_GT(lowest + kPage + seen, prefix) << "none that no row sees";
      }
    }
  }
}

TEST(TorchAttentionTest, RowsThatSeeNothingOfABlockTakeNothingFromIt) {
  const at::Tensor query = at::randn({1, 1, 2, kDim});
  const at::Tensor keys = at::randn({1, 6, kDim});
  const auto block = [&](int64_t begin, int64_t count, const at::Tensor& unseen) {
    return AttendBlock(query, keys.narrow(1, begin, count), keys.narrow(1, begin, count), unseen,
                       {kScale}, /*merged=*/true);
  };
  const at::Tensor nothing = at::ones({2, 2}, at::kBool);
  Attended sum;
  Merge(block(0, 2, nothing), sum);
  Merge(block(2, 4, {}), sum);
  Merge(block(0, 2, nothing), sum);
  ExpectClose(sum.output, block(2, 4, {}).output);
}

TorchDevice Cpu() { return *TorchDevice::Open("cpu"); }

// Sequences with one row each, of which each has pages of its own.
struct Sequences {
  explicit Sequences(const std::vector<int>& lengths) {
    int32_t next = 0;
    for (const int length : lengths) {
      auto& own = pages.emplace_back();
      for (int page = 0; page * kPage < length; ++page) own.push_back(next++);
    }
    for (size_t i = 0; i < lengths.size(); ++i) {
      SequenceSlice slice;
      slice.tokens = token;
      slice.token_count = 1;
      slice.prefix_length = lengths[i] - 1;
      slice.pages = pages[i];
      batch.slices.push_back(slice);
    }
    keys = at::randn({next, kHeads, kPage, kDim});
    values = at::randn({next, kHeads, kPage, kDim});
  }
  KeyBlock Gather(const at::Tensor& ids, const at::Tensor& heads) const {
    const auto take = [&](const at::Tensor& plane) {
      return plane.index({ids.unsqueeze(-2), heads.unsqueeze(-1)}).flatten(-3, -2);
    };
    return {take(keys), take(values)};
  }

  const std::vector<int32_t> token = {7};
  std::vector<std::vector<int32_t>> pages;
  Batch batch;
  at::Tensor keys, values;
};

TEST(TorchStepTest, SingleTokensAreAsEachAloneHoweverTheirPagesAreCut) {
  at::manual_seed(2);
  const std::vector<int> lengths = {1, 9, 4, 30, 17, 5, 30};
  const Sequences all(lengths);
  const at::Tensor query = at::randn({static_cast<int64_t>(lengths.size()), kHeads, kGroup, kDim});
  for (const int64_t window : {0, 1, 6, 100}) {
    for (const int64_t pages_at_once : {1, 7, 20, 1000}) {
      SCOPED_TRACE(testing::Message() << window << " " << pages_at_once);
      const double softcap = window == 6 ? 0.7 : 0;
      const StepShape shape = {kPage, kHeads, kDim, window, pages_at_once * kPage * kHeads * kDim};
      const TorchStep step = PlanStep(all.batch, shape, Cpu());
      EXPECT_TRUE(step.chunks.empty());
      const at::Tensor sorted = AttendDecodes(
          step, query.index_select(0, step.decode_rows),
          [&](const at::Tensor& ids) {
            EXPECT_LE(ids.numel(), pages_at_once + pages_at_once / 2) << "a short rest comes along";
            return all.Gather(ids, step.kv_heads);
          },
          {kScale, softcap});
      const at::Tensor actual = at::empty_like(query).index_copy_(0, step.decode_rows, sorted);
      for (size_t i = 0; i < lengths.size(); ++i) {
        const at::Tensor ids =
            at::tensor(std::vector<int64_t>(all.pages[i].begin(), all.pages[i].end()));
        const KeyBlock own = all.Gather(ids, step.kv_heads);
        const at::Tensor row = query.select(0, static_cast<int64_t>(i)).unsqueeze(2);
        ExpectClose(actual.select(0, static_cast<int64_t>(i)).unsqueeze(2),
                    Dense(row, own.first.narrow(1, 0, lengths[i]),
                          own.second.narrow(1, 0, lengths[i]), lengths[i] - 1, window, softcap));
      }
    }
  }
}

TEST(TorchStepTest, ChunksAndRowsOfABatchAreTold) {
  Sequences all({6, 11});
  const std::vector<int32_t> tokens = {1, 2, 3};
  SequenceSlice chunk;
  chunk.tokens = tokens;
  chunk.token_count = 3;
  chunk.prefix_length = 5;
  chunk.pages = all.pages[1];
  chunk.wants_logits = true;
  all.batch.slices[1] = chunk;
  const TorchStep step = PlanStep(all.batch, {kPage, kHeads, kDim, 0, 1000}, Cpu());
  ASSERT_EQ(step.chunks.size(), 1u);
  EXPECT_EQ(step.chunks[0].row, 1);
  EXPECT_EQ(step.chunks[0].prefix, 5);
  EXPECT_TRUE(step.chunks[0].pages.equal(at::tensor(std::vector<int64_t>{2, 3}))) << "the prefix's";
  EXPECT_TRUE(step.tokens.equal(at::tensor(std::vector<int64_t>{7, 1, 2, 3})));
  EXPECT_TRUE(step.page.equal(at::tensor(std::vector<int64_t>{1, 3, 3, 3})));
  EXPECT_TRUE(step.slot.equal(at::tensor(std::vector<int64_t>{1, 1, 2, 3})));
  EXPECT_TRUE(step.last.equal(at::tensor(std::vector<int64_t>{3})));
  EXPECT_TRUE(step.decode_rows.equal(at::tensor(std::vector<int64_t>{0})));
}

TEST(TorchFusedAttentionTest, APrefixIsCutIntoFewSizes) {
  using Blocks = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(CutPrefix(0, true), Blocks{});
  EXPECT_EQ(CutPrefix(70000, false), (Blocks{{0, 32768}, {32768, 65536}, {65536, 70000}}));
  EXPECT_EQ(CutPrefix(70000, true),
            (Blocks{{0, 32768}, {32768, 65536}, {65536, 69632}, {69632, 70000}}));
  EXPECT_EQ(CutPrefix(2048 + 2047, true), (Blocks{{0, 2048}, {2048, 4095}}));
  EXPECT_EQ(CutPrefix(7, true), (Blocks{{0, 7}}));
}

TEST(TorchFusedAttentionTest, RowsArePaddedByAQuarterAtMost) {
  EXPECT_EQ(PaddedRows(1023), 0);
  EXPECT_EQ(PaddedRows(1024), 1024);
  EXPECT_EQ(PaddedRows(1025), 1280);
  EXPECT_EQ(PaddedRows(4096), 4096);
  EXPECT_EQ(PaddedRows(4097), 5120);
}

TEST(TorchOperatorsTest, RoutesAreSortedByExpert) {
  const Routes routes = {at::tensor({0.1F, 0.2F, 0.3F, 0.4F, 0.5F, 0.6F}).view({3, 2}),
                         at::tensor(std::vector<int64_t>{3, 0, 0, 1, 3, 1}).view({3, 2})};
  const ExpertRuns runs = SortRoutes(routes, 5);
  EXPECT_EQ(runs.begin, (std::vector<int64_t>{0, 2, 4, 4, 6, 6}));
  EXPECT_TRUE(runs.rows.equal(at::tensor(std::vector<int64_t>{0, 1, 1, 2, 0, 2})));
  EXPECT_TRUE(runs.shares.equal(at::tensor({0.2F, 0.3F, 0.4F, 0.6F, 0.1F, 0.5F}).unsqueeze(1)));
}

}  // namespace
}  // namespace baton
