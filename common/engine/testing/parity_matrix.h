// One way to spread a model over processes and types of elements, beside Hugging Face's numbers.
#ifndef COMMON_ENGINE_TESTING_PARITY_MATRIX_H_
#define COMMON_ENGINE_TESTING_PARITY_MATRIX_H_

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/testing/disaggregated.h"
#include "common/engine/testing/parity_fixtures.h"

namespace baton::testing {

// Stages of a chain and ranks of each.
struct ParityShape {
  int stages;
  int ranks;
  bool operator==(const ParityShape&) const = default;
};

struct ParityRow {
  const char* family;
  Backend prefill;
  ParityShape shape;
  bool slices;  // Whether ranks pass on slices of the activations.
  int chunks;   // That row-parallel products are cut into.
  Backend decode;
  int decode_ranks;
  ElementType dtype;
  ElementType kv;

  std::string Name() const {
    const auto backend = [](Backend of) { return of == Backend::kNative ? "native" : "torch"; };
    return absl::StrCat(family, "_", backend(prefill), "_pp", shape.stages, "_tp", shape.ranks,
                        slices ? "_slices" : "", "_chunks", chunks, "_to_", backend(decode), "_tp",
                        decode_ranks, "_", ElementTypeName(dtype), "_kv_", ElementTypeName(kv));
  }
  friend void PrintTo(const ParityRow& row, std::ostream* out) { *out << row.Name(); }
};

// Values of the axes; three stages are uneven.
inline constexpr Backend kParityBackends[] = {Backend::kNative, Backend::kTorch};
inline constexpr ParityShape kParityShapes[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 4}, {3, 2}};
inline constexpr int kParityDecodeRanks[] = {1, 2, 4};
inline constexpr int kParityChunks[] = {1, 2, 4, 8};

inline std::shared_ptr<RankChain> PrefillOf(const ParityRow& row) {
  ExecutorOptions options = ParityOptions(row.family, row.prefill, row.dtype);
  options.kv_dtype = row.kv;
  options.slice_activations = row.slices && row.shape.ranks > 1;
  options.row_parallel = {row.chunks, /*threshold=*/1};
  std::vector<int> cuts = {0};
  if (row.shape.stages == 2) cuts = {0, 2};
  if (row.shape.stages == 3) cuts = {0, 1, 3};
  return std::make_shared<RankChain>(options, cuts, row.shape.ranks);
}

inline std::shared_ptr<RankChain> DecodeOf(const ParityRow& row) {
  ExecutorOptions options = ParityOptions(row.family, row.decode, row.dtype);
  options.kv_dtype = row.kv;
  auto decode = std::make_shared<RankChain>(options, std::vector<int>{0}, row.decode_ranks);
  decode->ReversePages();
  return decode;
}

// In float32 logits and all 64 greedy tokens are Hugging Face's. Where anything is rounded to
// bfloat16 they are Hugging Face's of the weights' type, and where two logits are nearer than that
// rounds, the logits are compared instead. Returns how many such ties there were.
inline int ExpectParity(const ParityRow& row, const std::shared_ptr<RankChain>& prefill,
                        const std::shared_ptr<RankChain>& decode) {
  Disaggregated both(prefill, decode);
  const bool exact = row.dtype == ElementType::kFloat32 && row.kv == ElementType::kFloat32;
  const bool native = row.prefill == Backend::kNative && row.decode == Backend::kNative;
  const Bf16Rounding rounding = RoundingOf(native ? Backend::kNative : Backend::kTorch);
  int ties = 0;
  for (const ParityFixture& fixture : ParityFixtures(row.family)) {
    const ParityCase& expected =
        row.dtype == ElementType::kFloat32 ? fixture.float32 : fixture.bfloat16;
    EXPECT_EQ(expected.greedy.size(), 64u);
    const auto prompt_tokens = static_cast<int>(expected.prompt.size());
    const Forward forward = [&](std::span<const int32_t> tokens, int prefix) {
      return both.Logits(tokens, prefix, prompt_tokens);
    };
    if (exact) {
      ExpectSameLogits(forward, expected);
      ExpectSameTokens(forward, expected);
    } else {
      ties += ExpectSameTokensButForTies(forward, expected, rounding);
    }
  }
  // The ties among 128 tokens; libtorch rounds sums as well.
  EXPECT_LE(ties, native ? 8 : 12);
  return ties;
}

}  // namespace baton::testing

#endif  // COMMON_ENGINE_TESTING_PARITY_MATRIX_H_
