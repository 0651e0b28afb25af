// Ranks that share a model's layers beside Hugging Face's numbers, in both element types.
#include <gtest/gtest.h>

#include <ostream>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "common/engine/testing/parity_fixtures.h"
#include "common/engine/testing/rank_chain.h"

namespace baton {
namespace {

using testing::RankChain;

// Where stages begin, and the ranks of each.
struct Grid {
  std::string name;
  std::vector<int> cuts;
  int tp_size;
  Backend backend = Backend::kNative;
  friend void PrintTo(const Grid& grid, std::ostream* out) { *out << grid.name; }
};
const Grid kGrids[] = {{"pp1_tp2", {0}, 2},  // parity_test has one rank.
                       {"pp1_tp4", {0}, 4},
                       {"pp2_tp2", {0, 3}, 2},  // Uneven, like the next.
                       {"pp3_tp2", {0, 1, 3}, 2},
                       {"torch_pp1_tp4", {0}, 4, Backend::kTorch}};

class TensorParallelParityTest : public ::testing::TestWithParam<std::tuple<const char*, Grid>> {
 protected:
  const char* family() const { return std::get<0>(GetParam()); }
  const Grid& grid() const { return std::get<1>(GetParam()); }
  RankChain Chain(ElementType dtype) const {
    return RankChain(testing::ParityOptions(family(), grid().backend, dtype), grid().cuts,
                     grid().tp_size);
  }
  void ExpectFloat32Parity() const {
    RankChain chain = Chain(ElementType::kFloat32);
    const auto forward = [&](std::span<const int32_t> tokens, int prefix) {
      return chain.Logits(tokens, prefix);
    };
    for (const auto& fixture : testing::ParityFixtures(family())) {
      testing::ExpectSameLogits(forward, fixture.float32);
      testing::ExpectSameTokens(forward, fixture.float32);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Grids, TensorParallelParityTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kParityFamilies),
                                            ::testing::ValuesIn(kGrids)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });

// Experts, biases and a window, in float32; the fixtures have 5, 6 and 8 experts.
class VariantParityTest : public TensorParallelParityTest {};

INSTANTIATE_TEST_SUITE_P(Grids, VariantParityTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kParityVariants),
                                            ::testing::Values(kGrids[0], kGrids[1],
                                                              Grid{"pp2_tp2", {0, 1}, 2},
                                                              kGrids[4])),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });

TEST_P(VariantParityTest, LogitsAndGreedyTokensAreHuggingFaces) { ExpectFloat32Parity(); }

TEST_P(TensorParallelParityTest, LogitsAndGreedyTokensAreHuggingFaces) { ExpectFloat32Parity(); }
TEST_P(TensorParallelParityTest, Bf16TokensAreHuggingFacesButForNearTies) {
  RankChain chain = Chain(ElementType::kBFloat16);
  int ties = 0;
  for (const auto& fixture : testing::ParityFixtures(family())) {
    ties += testing::ExpectSameTokensButForTies(
        [&](std::span<const int32_t> tokens, int prefix) { return chain.Logits(tokens, prefix); },
        fixture.bfloat16, testing::RoundingOf(grid().backend));
  }
  RecordProperty("near_ties", ties);
  // libtorch rounds what is summed as well.
  EXPECT_LE(ties, grid().backend == Backend::kNative ? 6 : 10);
}

}  // namespace
}  // namespace baton
