// Every value of each axis along which a model is spread over processes, and every pair of values
// of two axes, beside Hugging Face's numbers. All combinations: `./dev check parity`.
#include "common/engine/testing/parity_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <set>
#include <string>

namespace baton {
namespace {

using testing::ParityRow;
using enum Backend;
using enum ElementType;

// A covering array of strength two, which no table of fewer rows is: the shapes and the chunks
// alone have 24 pairs. After a change of an axis the last test says what is missing.
constexpr ParityRow kRows[] = {
    // Family, prefill: executor, stages and ranks, slices, row-parallel chunks; decode: executor,
    // ranks; types of weights and of keys and values.
    {"qwen2", kNative, {1, 1}, false, 1, kTorch, 4, kFloat32, kFloat32},
    {"qwen3", kNative, {1, 1}, true, 2, kTorch, 1, kBFloat16, kBFloat16},
    {"qwen3", kNative, {1, 1}, false, 4, kTorch, 2, kFloat32, kFloat32},
    {"llama3", kTorch, {1, 1}, false, 8, kNative, 2, kFloat32, kFloat32},
    {"qwen2", kNative, {2, 1}, false, 1, kNative, 2, kBFloat16, kBFloat16},
    {"llama3", kNative, {2, 1}, true, 2, kTorch, 4, kBFloat16, kBFloat16},
    {"qwen3", kTorch, {2, 1}, false, 4, kTorch, 4, kBFloat16, kFloat32},
    {"qwen2", kTorch, {2, 1}, false, 8, kNative, 1, kFloat32, kFloat32},
    {"qwen3", kTorch, {1, 2}, true, 1, kNative, 1, kBFloat16, kBFloat16},
    {"qwen2", kTorch, {1, 2}, false, 2, kTorch, 2, kFloat32, kBFloat16},
    {"llama3", kNative, {1, 2}, false, 4, kTorch, 4, kFloat32, kFloat32},
    {"llama3", kTorch, {1, 2}, false, 8, kTorch, 2, kFloat32, kFloat32},
    {"llama3", kNative, {2, 2}, true, 1, kNative, 1, kBFloat16, kFloat32},
    {"qwen2", kTorch, {2, 2}, false, 2, kNative, 4, kBFloat16, kFloat32},
    {"qwen3", kNative, {2, 2}, true, 4, kNative, 1, kBFloat16, kFloat32},
    {"qwen3", kNative, {2, 2}, true, 8, kTorch, 2, kFloat32, kBFloat16},
    {"qwen2", kNative, {1, 4}, true, 1, kTorch, 4, kBFloat16, kFloat32},
    {"llama3", kNative, {1, 4}, false, 2, kNative, 2, kBFloat16, kFloat32},
    {"qwen2", kNative, {1, 4}, false, 4, kTorch, 1, kFloat32, kFloat32},
    {"qwen3", kTorch, {1, 4}, true, 8, kNative, 4, kBFloat16, kBFloat16},
    {"qwen3", kNative, {3, 2}, false, 1, kTorch, 4, kFloat32, kFloat32},
    {"llama3", kTorch, {3, 2}, true, 2, kNative, 1, kFloat32, kFloat32},
    {"qwen2", kTorch, {3, 2}, true, 4, kNative, 2, kBFloat16, kBFloat16},
    {"llama3", kTorch, {3, 2}, true, 8, kNative, 1, kBFloat16, kBFloat16},
};

// What the families above lack, spread over stages and ranks of both sides.
constexpr ParityRow kVariants[] = {
    {"qwen3_moe", kNative, {2, 1}, false, 1, kNative, 1, kFloat32, kFloat32},
    {"qwen3_moe", kNative, {3, 2}, true, 4, kNative, 4, kFloat32, kFloat32},
    {"qwen3_moe_step", kTorch, {2, 2}, false, 2, kNative, 2, kFloat32, kFloat32},
    {"mixtral", kNative, {2, 2}, true, 1, kTorch, 1, kFloat32, kFloat32},
    {"mistral", kNative, {2, 2}, false, 8, kNative, 2, kFloat32, kFloat32},
    {"mistral", kTorch, {2, 1}, false, 1, kNative, 1, kFloat32, kFloat32},
    {"llama_bias", kNative, {2, 2}, true, 2, kTorch, 4, kFloat32, kFloat32},
    {"deepseek_v3", kNative, {2, 1}, false, 1, kNative, 2, kFloat32, kFloat32},
    {"deepseek_v3", kNative, {3, 2}, true, 4, kNative, 1, kFloat32, kFloat32},
    {"deepseek_v3", kNative, {1, 4}, false, 1, kTorch, 2, kFloat32, kFloat32},
    {"deepseek_v3", kTorch, {2, 2}, true, 2, kNative, 4, kFloat32, kFloat32},
    {"deepseek_v2", kNative, {2, 2}, false, 8, kNative, 2, kFloat32, kFloat32},
    {"glm4_moe", kNative, {2, 2}, true, 2, kNative, 4, kFloat32, kFloat32},
    {"glm4_moe", kTorch, {2, 1}, false, 1, kNative, 2, kFloat32, kFloat32},
    {"minimax_m2", kNative, {2, 2}, true, 8, kNative, 4, kFloat32, kFloat32},
    {"minimax_m2", kTorch, {2, 2}, false, 4, kNative, 1, kFloat32, kFloat32},
    {"phi3", kNative, {2, 2}, true, 2, kTorch, 4, kFloat32, kFloat32},
    {"phi3", kTorch, {2, 1}, false, 1, kNative, 2, kFloat32, kFloat32},
    {"gemma2", kNative, {2, 2}, true, 2, kTorch, 2, kFloat32, kFloat32},
    {"gemma2", kTorch, {2, 1}, false, 1, kNative, 4, kFloat32, kFloat32},
    {"gemma3", kNative, {3, 2}, true, 4, kTorch, 1, kFloat32, kFloat32},
    {"gemma3", kTorch, {1, 2}, false, 1, kNative, 2, kFloat32, kFloat32},
};

class ParityMatrixTest : public ::testing::TestWithParam<ParityRow> {};

TEST_P(ParityMatrixTest, TokensAreHuggingFaces) {
  const ParityRow& row = GetParam();
  RecordProperty("near_ties",
                 testing::ExpectParity(row, testing::PrefillOf(row), testing::DecodeOf(row)));
}

INSTANTIATE_TEST_SUITE_P(Rows, ParityMatrixTest, ::testing::ValuesIn(kRows),
                         [](const auto& info) { return info.param.Name(); });

INSTANTIATE_TEST_SUITE_P(Variants, ParityMatrixTest, ::testing::ValuesIn(kVariants),
                         [](const auto& info) { return info.param.Name(); });

// ---- What the table covers ----

constexpr size_t kAxes = 9;
constexpr std::array<size_t, kAxes> kValues = {std::size(testing::kParityFamilies),
                                               std::size(testing::kParityBackends),
                                               std::size(testing::kParityShapes),
                                               2,
                                               std::size(testing::kParityChunks),
                                               std::size(testing::kParityBackends),
                                               std::size(testing::kParityDecodeRanks),
                                               std::size(kElementTypes),
                                               std::size(kElementTypes)};

template <typename Values, typename Value>
size_t IndexOf(const Values& values, const Value& value) {
  const auto found = std::find(std::begin(values), std::end(values), value);
  EXPECT_NE(found, std::end(values)) << "a row has a value of no axis";
  return static_cast<size_t>(found - std::begin(values));
}

std::array<size_t, kAxes> IndexesOf(const ParityRow& row) {
  const auto family =
      std::find_if(std::begin(testing::kParityFamilies), std::end(testing::kParityFamilies),
                   [&](const std::string& name) { return name == row.family; });
  return {static_cast<size_t>(family - std::begin(testing::kParityFamilies)),
          IndexOf(testing::kParityBackends, row.prefill),
          IndexOf(testing::kParityShapes, row.shape),
          row.slices ? size_t{1} : size_t{0},
          IndexOf(testing::kParityChunks, row.chunks),
          IndexOf(testing::kParityBackends, row.decode),
          IndexOf(testing::kParityDecodeRanks, row.decode_ranks),
          IndexOf(kElementTypes, row.dtype),
          IndexOf(kElementTypes, row.kv)};
}

TEST(ParityTableTest, EveryPairOfValuesOfTwoAxesIsInSomeRow) {
  for (size_t one = 0; one < kAxes; ++one) {
    for (size_t other = one + 1; other < kAxes; ++other) {
      std::set<std::array<size_t, 2>> met;
      for (const ParityRow& row : kRows) {
        const auto at = IndexesOf(row);
        met.insert({at[one], at[other]});
      }
      for (size_t a = 0; a < kValues[one]; ++a) {
        for (size_t b = 0; b < kValues[other]; ++b) {
          EXPECT_TRUE(met.contains({a, b}))
              << "value " << a << " of axis " << one << " with value " << b << " of axis " << other;
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton
