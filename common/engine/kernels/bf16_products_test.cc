#include "common/engine/kernels/bf16_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/base/random.h"

namespace baton::kernels {
namespace {

std::vector<float> RandomFloats(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.Uniform() * 2 - 1);
  return values;
}

std::vector<Bf16> Rounded(const std::vector<float>& values) {
  std::vector<Bf16> rounded(values.size());
  FindKernels("")->to_bf16(values.data(), values.size(), rounded.data());
  return rounded;
}

std::vector<float> Wide(const std::vector<Bf16>& values) {
  std::vector<float> wide(values.size());
  FindKernels("")->from_bf16(values.data(), values.size(), wide.data());
  return wide;
}

size_t At(int row, int columns, int column) {
  return static_cast<size_t>(row) * static_cast<size_t>(columns) + static_cast<size_t>(column);
}

// Rows [begin, begin + count) of an input, as products take them. What is not written shows.
std::vector<Bf16> PackedInput(const std::vector<Bf16>& input, int inputs, int begin, int count) {
  std::vector<Bf16> x(static_cast<size_t>(count) * static_cast<size_t>(PaddedInputs(inputs)),
                      Bf16{0x7fc0});
  for (int row = 0; row < count; ++row) {
    PackPairedInput(input.data() + At(begin + row, inputs, 0), row, count, inputs, x.data());
  }
  return x;
}

struct Matrix {
  int outputs;
  int inputs;
  std::vector<Bf16> rows;
  std::vector<Bf16> panels;

  Matrix(int outputs, int inputs, uint64_t seed = 1)
      : outputs(outputs),
        inputs(inputs),
        rows(Rounded(
            RandomFloats(static_cast<size_t>(outputs) * static_cast<size_t>(inputs), seed))),
        panels(PairedSize(outputs, inputs)) {
    PackPairedRows(rows.data(), 0, outputs, inputs, panels.data());
  }
  PairedMatrix packed() const { return {panels.data(), outputs, inputs}; }
  std::vector<Bf16> Input(int count) const {
    return Rounded(RandomFloats(static_cast<size_t>(count) * static_cast<size_t>(inputs), 7));
  }
  std::vector<Bf16> Packed(const std::vector<Bf16>& input, int begin, int count) const {
    return PackedInput(input, inputs, begin, count);
  }
};

TEST(PairedMatrixTest, RowsAreUnpackedAsTheyWere) {
  for (const auto& [outputs, inputs] : {std::pair{1, 1}, {33, 31}, {64, 32}, {70, 45}}) {
    const Matrix matrix(outputs, inputs);
    const std::vector<float> rows = Wide(matrix.rows);
    std::vector<float> row(static_cast<size_t>(inputs));
    for (int r = 0; r < outputs; ++r) {
      UnpackPairedRow(matrix.packed(), r, row.data());
      for (int c = 0; c < inputs; ++c) {
        ASSERT_EQ(row[static_cast<size_t>(c)], rows[At(r, inputs, c)]);
      }
    }
  }
}

// By each set of instructions that this CPU has.
class Bf16ProductsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (AvailableBf16Products().empty()) GTEST_SKIP() << "this CPU multiplies no bfloat16";
  }
};

void ExpectProductsOfTheDefinition(const Bf16Products& products) {
  for (const int rows : {1, 15, 16, 17, 32, 33, 70, 530}) {
    for (const auto& [outputs, inputs] :
         {std::pair{1, 1}, {16, 33}, {31, 64}, {33, 100}, {300, 1'100}}) {
      const Matrix matrix(outputs, inputs);
      const std::vector<Bf16> x = matrix.Input(rows);
      const std::vector<float> wide_x = Wide(x);
      const std::vector<float> wide_w = Wide(matrix.rows);
      const size_t stride = static_cast<size_t>(outputs) + 3;
      std::vector<float> y(static_cast<size_t>(rows) * stride, 7);
      products.linear(matrix.packed(), matrix.Packed(x, 0, rows).data(), rows, 0,
                      (outputs + kPairPanel - 1) / kPairPanel, y.data(), stride);
      for (int r = 0; r < rows; ++r) {
        for (int o = 0; o < outputs; ++o) {
          double sum = 0;
          for (int i = 0; i < inputs; ++i) {
            sum += double{wide_x[At(r, inputs, i)]} * double{wide_w[At(o, inputs, i)]};
          }
          const size_t at = static_cast<size_t>(r) * stride + static_cast<size_t>(o);
          ASSERT_NEAR(y[at], sum, 1e-5 * inputs) << rows << " x " << outputs << " x " << inputs;
        }
        for (size_t gap = static_cast<size_t>(outputs); gap < stride; ++gap) {
          ASSERT_EQ(y[static_cast<size_t>(r) * stride + gap], 7) << "behind a row";
        }
      }
    }
  }
}

TEST_F(Bf16ProductsTest, ProductsAreThoseOfTheDefinition) {
  for (const Bf16Products* products : AvailableBf16Products()) {
    SCOPED_TRACE(products->name);
    ExpectProductsOfTheDefinition(*products);
  }
}

// However many rows there are, and however threads share the panels.
void ExpectTheSameBitsInEveryBatch(const Bf16Products& products) {
  const Matrix matrix(100, 2'100);
  constexpr int kRows = 70;
  const std::vector<Bf16> x = matrix.Input(kRows);
  std::vector<float> all(size_t{kRows} * 100);
  products.linear(matrix.packed(), matrix.Packed(x, 0, kRows).data(), kRows, 0, 4, all.data(), 100);
  for (const int rows : {1, 5, 16, 20, 33}) {
    for (int begin = 0; begin + rows <= kRows; begin += rows) {
      std::vector<float> some(static_cast<size_t>(rows) * 100);
      const std::vector<Bf16> from = matrix.Packed(x, begin, rows);
      products.linear(matrix.packed(), from.data(), rows, 0, 1, some.data(), 100);
      products.linear(matrix.packed(), from.data(), rows, 1, 4, some.data(), 100);
      ASSERT_EQ(
          std::memcmp(some.data(), all.data() + At(begin, 100, 0), some.size() * sizeof(float)), 0)
          << rows << " rows from " << begin;
    }
  }
}

TEST_F(Bf16ProductsTest, ARowHasTheSameBitsInEveryBatch) {
  for (const Bf16Products* products : AvailableBf16Products()) {
    SCOPED_TRACE(products->name);
    ExpectTheSameBitsInEveryBatch(*products);
  }
}

struct Fp8Matrix {
  int outputs;
  int inputs;
  int offset;
  std::vector<E4m3> rows;
  std::vector<float> scales;  // [outputs, blocks]
  std::vector<E4m3> panels;
  std::vector<float> packed_scales;

  Fp8Matrix(int outputs, int inputs, int offset)
      : outputs(outputs),
        inputs(inputs),
        offset(offset),
        rows(static_cast<size_t>(outputs) * static_cast<size_t>(inputs)),
        panels(PairedSize(outputs, inputs)) {
    Random random(5);
    for (E4m3& weight : rows) {
      do {
        weight.bits = static_cast<uint8_t>(random.Next());
      } while ((weight.bits & 0x7f) == 0x7f);
    }
    const int blocks = packed().blocks();
    scales = RandomFloats(static_cast<size_t>(outputs) * static_cast<size_t>(blocks), 9);
    packed_scales.resize(PackedSize(outputs, blocks, kPairPanel));
    PackRows(scales.data(), 0, outputs, blocks, kPairPanel, packed_scales.data());
    PackPairedRows(rows.data(), 0, outputs, inputs, panels.data());
  }
  PairedE4m3Matrix packed() const {
    return {panels.data(), outputs, inputs, packed_scales.data(), offset};
  }
  float Value(int output, int input) const {
    return Widened(rows[At(output, inputs, input)]) *
           scales[At(output, packed().blocks(), (input + offset) / kScaleBlock)];
  }
};

constexpr std::pair<int, int> kFp8Shapes[] = {{1, 1}, {33, 100}, {300, 1'101}, {70, 2'600}};

TEST(PairedMatrixTest, Fp8RowsAreUnpackedAsTheyWere) {
  for (const auto& [outputs, inputs] : kFp8Shapes) {
    const Fp8Matrix matrix(outputs, inputs, 34);
    std::vector<float> row(static_cast<size_t>(inputs));
    for (int r = 0; r < outputs; ++r) {
      UnpackPairedRow(matrix.packed(), r, row.data());
      for (int c = 0; c < inputs; ++c) {
        ASSERT_EQ(row[static_cast<size_t>(c)], matrix.Value(r, c));
      }
    }
  }
}

// Every code of FP8 is widened exactly, so only sums round.
TEST_F(Bf16ProductsTest, Fp8ProductsAreThoseOfTheDefinitionInEveryBatch) {
  constexpr int kRows = 45;
  for (const Bf16Products* products : AvailableBf16Products()) {
    for (const auto& [outputs, inputs] : kFp8Shapes) {
      for (const int offset : {0, 34}) {
        const Fp8Matrix matrix(outputs, inputs, offset);
        const auto x = Rounded(RandomFloats(At(kRows, inputs, 0), 7));
        const std::vector<float> wide_x = Wide(x);
        const int panels = (outputs + kPairPanel - 1) / kPairPanel;
        const auto stride = static_cast<size_t>(outputs);
        std::vector<float> y(static_cast<size_t>(kRows) * stride, 7);
        products->linear_e4m3(matrix.packed(), PackedInput(x, inputs, 0, kRows).data(), kRows, 0,
                              panels, y.data(), stride);
        for (int r = 0; r < kRows; ++r) {
          for (int o = 0; o < outputs; ++o) {
            double sum = 0;
            double size = 0;
            for (int i = 0; i < inputs; ++i) {
              const double product = double{wide_x[At(r, inputs, i)]} * matrix.Value(o, i);
              sum += product;
              size += std::abs(product);
            }
            ASSERT_NEAR(y[At(r, outputs, o)], sum, 1e-6 * size) << inputs << " inputs";
          }
        }
        for (int begin = 0, count = 1; begin < kRows; begin += count, ++count) {
          count = std::min(count, kRows - begin);
          std::vector<float> some(static_cast<size_t>(count) * stride);
          products->linear_e4m3(matrix.packed(), PackedInput(x, inputs, begin, count).data(), count,
                                0, panels, some.data(), stride);
          ASSERT_EQ(
              std::memcmp(some.data(), &y[At(begin, outputs, 0)], some.size() * sizeof(float)), 0)
              << count << " rows from " << begin;
        }
      }
    }
  }
}

// Keys and values of [tiles][kKeyTile][dim], as AttentionArgs have them.
struct Sequence {
  std::vector<Bf16> rows;
  std::vector<const Bf16*> keys;
  std::vector<const Bf16*> values;

  // Positions from `positions` on were never written.
  Sequence(int positions, int dim, uint64_t seed) {
    const auto tile = At(kKeyTile, dim, 0);
    const auto tiles = static_cast<size_t>((positions + kKeyTile - 1) / kKeyTile);
    rows = Rounded(RandomFloats(2 * tiles * tile, seed));
    for (size_t i = 0; i < tiles; ++i) {
      keys.push_back(&rows[2 * i * tile]);
      values.push_back(&rows[(2 * i + 1) * tile]);
    }
    const size_t written = (static_cast<size_t>(positions) % kKeyTile) * static_cast<size_t>(dim);
    if (written == 0) return;
    for (const size_t begin : {(2 * tiles - 2) * tile, (2 * tiles - 1) * tile}) {
      std::fill(rows.begin() + static_cast<ptrdiff_t>(begin + written),
                rows.begin() + static_cast<ptrdiff_t>(begin + tile), Bf16{0x7fc0});
    }
  }
};

struct AttentionShape {
  int heads;
  int dim;
  int value_dim;
  int window;
  float softcap = 0;
  float sharpness = 3;  // With more, scores lie further apart.
};

// Attends from tokens [begin, end) of the sequence.
std::vector<float> Attend(void (*attention)(const AttentionArgs<Bf16>&), const Sequence& sequence,
                          const AttentionShape& shape, const std::vector<float>& query, int begin,
                          int end) {
  const int values = shape.value_dim > 0 ? shape.value_dim : shape.dim;
  std::vector<float> output(At((end - begin) * shape.heads, values, 0));
  AttentionArgs<Bf16> args;
  args.query = query.data() + At(begin * shape.heads, shape.dim, 0);
  args.output = output.data();
  args.query_stride = At(shape.heads, shape.dim, 0);
  args.output_stride = At(shape.heads, values, 0);
  args.tokens = end - begin;
  args.heads = shape.heads;
  args.head_dim = shape.dim;
  args.value_dim = shape.value_dim;
  args.first_position = begin;
  args.window = shape.window;
  args.softcap = shape.softcap;
  args.scale = shape.sharpness / std::sqrt(static_cast<float>(shape.dim));
  args.kv = {sequence.keys.data(), sequence.values.data()};
  attention(args);
  return output;
}

constexpr AttentionShape kShapes[] = {{1, 32, 0, 0},   {4, 64, 0, 0},        {3, 96, 0, 70},
                                      {5, 64, 0, 300}, {7, 128, 0, 0},       {2, 576, 512, 0},
                                      {2, 80, 0, 0},   {2, 64, 0, 70, 1.5F}, {3, 64, 0, 0, 0, 40}};

// More than any kernel attends to at once.
constexpr int kPositions = 605;

// Within the rounding of weights; queries are rounded before. What is behind the sequence is not
// read.
TEST_F(Bf16ProductsTest, AttentionIsNearThatInFloat32) {
  for (const Bf16Products* products : AvailableBf16Products()) {
    for (const AttentionShape& shape : kShapes) {
      const Sequence sequence(kPositions, shape.dim, 3);
      const auto query =
          Wide(Rounded(RandomFloats(At(kPositions * shape.heads, shape.dim, 0), 11)));
      const auto near = Attend(products->attention, sequence, shape, query, 0, kPositions);
      const auto exact =
          Attend(FindKernels("")->attention_bf16, sequence, shape, query, 0, kPositions);
      for (size_t i = 0; i < exact.size(); ++i) {
        ASSERT_NEAR(near[i], exact[i], 0.02) << products->name << ", dim " << shape.dim;
      }
    }
  }
}

TEST_F(Bf16ProductsTest, AttentionDependsOnTheTokensAlone) {
  for (const Bf16Products* products : AvailableBf16Products()) {
    for (const AttentionShape& shape : kShapes) {
      const auto query = RandomFloats(At(kPositions * shape.heads, shape.dim, 0), 11);
      const Sequence sequence(kPositions, shape.dim, 3);
      const auto expected = Attend(products->attention, sequence, shape, query, 0, kPositions);
      std::vector<float> cut;
      for (int begin = 0, count = 1; begin < kPositions; begin += count, count = begin % 140 + 1) {
        const int end = std::min(begin + count, kPositions);
        const auto some = Attend(products->attention, sequence, shape, query, begin, end);
        cut.insert(cut.end(), some.begin(), some.end());
      }
      ASSERT_EQ(cut, expected) << products->name << ", dim " << shape.dim;
    }
  }
}

TEST_F(Bf16ProductsTest, TheFastestIsAvailable) {
  const Bf16Products* fastest = FastestBf16Products();
  const std::vector<const Bf16Products*> all = AvailableBf16Products();
  if (fastest == nullptr) GTEST_SKIP() << "float32 is faster here";
  EXPECT_NE(std::find(all.begin(), all.end(), fastest), all.end());
}

}  // namespace
}  // namespace baton::kernels
