#include "common/engine/kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/base/random.h"

namespace baton::kernels {
namespace {

// Floats of a [rows, columns, depth] array.
size_t Size(size_t rows, size_t columns, size_t depth = 1) { return rows * columns * depth; }

std::vector<float> RandomFloats(Random& random, size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.Uniform() * 2 - 1);
  return values;
}

void ExpectClose(const std::vector<float>& actual, const std::vector<float>& expected,
                 double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * (1 + std::fabs(expected[i])))
        << "element " << i;
  }
}

const KernelTable& Scalar() { return *FindKernels("scalar"); }

// Every table that this CPU runs against the scalar one.
class KernelsTest : public testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& kernels() const { return *GetParam(); }
  Random random_{20261120};
};

TEST_P(KernelsTest, RmsNormMatchesScalar) {
  for (int trial = 0; trial < 50; ++trial) {
    const int rows = static_cast<int>(random_.Between(1, 5));
    const int dim = static_cast<int>(random_.Between(1, 300));
    const auto x = RandomFloats(random_, Size(rows, dim));
    const auto weight = RandomFloats(random_, static_cast<size_t>(dim));
    std::vector<float> y(x.size());
    std::vector<float> expected(x.size());
    kernels().rms_norm(x.data(), weight.data(), 1e-6f, rows, dim, y.data());
    Scalar().rms_norm(x.data(), weight.data(), 1e-6f, rows, dim, expected.data());
    ExpectClose(y, expected, 1e-5);
  }
}

TEST_P(KernelsTest, RmsNormMayWorkInPlace) {
  auto x = RandomFloats(random_, 100);
  const auto weight = RandomFloats(random_, 50);
  std::vector<float> y(x.size());
  kernels().rms_norm(x.data(), weight.data(), 1e-6f, 2, 50, y.data());
  kernels().rms_norm(x.data(), weight.data(), 1e-6f, 2, 50, x.data());
  EXPECT_EQ(x, y);
}

TEST_P(KernelsTest, RopeMatchesScalar) {
  for (const int dim : {2, 16, 30, 64, 80, 128}) {
    auto x = RandomFloats(random_, Size(3, dim));
    auto expected = x;
    const auto cos = RandomFloats(random_, static_cast<size_t>(dim / 2));
    const auto sin = RandomFloats(random_, static_cast<size_t>(dim / 2));
    kernels().rope(x.data(), cos.data(), sin.data(), 3, dim);
    Scalar().rope(expected.data(), cos.data(), sin.data(), 3, dim);
    ExpectClose(x, expected, 1e-6);
  }
}

TEST_P(KernelsTest, SiluMulMatchesScalarFarFromZeroToo) {
  for (const int dim : {1, 15, 16, 33, 200}) {
    auto gate_up = RandomFloats(random_, Size(4, dim));
    for (float& value : gate_up) value *= 120;
    std::vector<float> y(Size(2, dim));
    std::vector<float> expected(y.size());
    kernels().silu_mul(gate_up.data(), 2, dim, y.data());
    Scalar().silu_mul(gate_up.data(), 2, dim, expected.data());
    ExpectClose(y, expected, 2e-6);
  }
}

TEST_P(KernelsTest, AddAndBiasMatchScalar) {
  const auto x = RandomFloats(random_, 77);
  auto y = RandomFloats(random_, 77);
  auto expected = y;
  kernels().add(x.data(), 77, y.data());
  Scalar().add(x.data(), 77, expected.data());
  EXPECT_EQ(y, expected);
  kernels().add_bias(x.data(), 7, 11, y.data());
  Scalar().add_bias(x.data(), 7, 11, expected.data());
  EXPECT_EQ(y, expected);
}

TEST_P(KernelsTest, GeluMatchesScalar) {
  for (const int dim : {1, 7, 16, 45}) {
    auto gate_up = RandomFloats(random_, Size(3, 2 * static_cast<size_t>(dim)));
    for (float& value : gate_up) value *= 12;
    gate_up[0] = -200;  // Overflows an exponential.
    std::vector<float> y(Size(3, static_cast<size_t>(dim)));
    std::vector<float> expected(y.size());
    kernels().gelu_mul(gate_up.data(), 3, dim, y.data());
    Scalar().gelu_mul(gate_up.data(), 3, dim, expected.data());
    ExpectClose(y, expected, 2e-6);
  }
}

TEST_P(KernelsTest, SoftCapMatchesScalarForSmallAndForLargeNumbers) {
  constexpr float kCap = 30;
  auto x = RandomFloats(random_, 1003);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= std::pow(10.0f, static_cast<float>(i % 9) - 4);
  std::vector<float> expected = x;
  kernels().soft_cap(kCap, x.size(), x.data());
  Scalar().soft_cap(kCap, expected.size(), expected.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(x[i], expected[i], 1e-6 * std::fabs(expected[i])) << i;
    ASSERT_LE(std::fabs(x[i]), kCap);
  }
}

struct Packed {
  std::vector<float> panels;
  PackedMatrix matrix;
};

Packed Pack(const std::vector<float>& weights, int outputs, int inputs, int width) {
  Packed packed;
  packed.panels.resize(PackedSize(outputs, inputs, width));
  PackRows(weights.data(), 0, outputs, inputs, width, packed.panels.data());
  packed.matrix = {packed.panels.data(), outputs, inputs};
  return packed;
}

std::vector<float> RunLinear(const KernelTable& table, const std::vector<float>& weights,
                             int outputs, int inputs, const float* x, int rows) {
  const Packed packed = Pack(weights, outputs, inputs, table.panel_width);
  const int panels = (outputs + table.panel_width - 1) / table.panel_width;
  std::vector<float> y(Size(rows, outputs), std::numeric_limits<float>::quiet_NaN());
  table.linear(packed.matrix, x, rows, 0, panels, y.data(), static_cast<size_t>(outputs));
  return y;
}

TEST_P(KernelsTest, LinearMatchesScalarOnRandomShapes) {
  for (int trial = 0; trial < 60; ++trial) {
    const int outputs = static_cast<int>(random_.Between(1, 200));
    const int inputs = static_cast<int>(random_.Between(1, 700));
    const int rows = static_cast<int>(random_.Between(1, 40));
    SCOPED_TRACE(testing::Message() << outputs << "x" << inputs << ", rows " << rows);
    const auto weights = RandomFloats(random_, Size(outputs, inputs));
    const auto x = RandomFloats(random_, Size(rows, inputs));
    ExpectClose(RunLinear(kernels(), weights, outputs, inputs, x.data(), rows),
                RunLinear(Scalar(), weights, outputs, inputs, x.data(), rows), 2e-5);
  }
}

TEST_P(KernelsTest, LinearRowsDoNotDependOnTheirBatch) {
  const int outputs = 150;
  const int inputs = 600;
  const int rows = 31;
  const auto weights = RandomFloats(random_, Size(outputs, inputs));
  const auto x = RandomFloats(random_, Size(rows, inputs));
  const auto together = RunLinear(kernels(), weights, outputs, inputs, x.data(), rows);
  for (int size = 1; size < rows; ++size) {
    for (const int row : {0, rows - size}) {
      const auto some = RunLinear(kernels(), weights, outputs, inputs, &x[Size(row, inputs)], size);
      ASSERT_TRUE(std::equal(some.begin(), some.end(),
                             together.begin() + static_cast<ptrdiff_t>(Size(row, outputs))))
          << "rows " << row << " to " << row + size;
    }
  }
}

// A paged sequence of one KV head, its tiles scattered in memory.
struct Sequence {
  Sequence(Random& random, int length, int dim)
      : storage(RandomFloats(random, 2 * Size(Tiles(length), kKeyTile, dim))) {
    const size_t tile_floats = Size(kKeyTile, dim);
    const auto tiles = static_cast<size_t>(Tiles(length));
    for (size_t i = 0; i < tiles; ++i) {
      keys.push_back(&storage[(tiles - 1 - i) * tile_floats]);
      values.push_back(&storage[(2 * tiles - 1 - i) * tile_floats]);
      // What lies past the end was never written.
      for (size_t k = 0; k < kKeyTile; ++k) {
        if (i * kKeyTile + k < static_cast<size_t>(length)) continue;
        for (size_t d = 0; d < static_cast<size_t>(dim); ++d) {
          const size_t at = k * static_cast<size_t>(dim) + d;
          storage[(tiles - 1 - i) * tile_floats + at] = std::numeric_limits<float>::quiet_NaN();
          storage[(2 * tiles - 1 - i) * tile_floats + at] = std::numeric_limits<float>::quiet_NaN();
        }
      }
    }
  }
  static int Tiles(int length) { return (length + kKeyTile - 1) / kKeyTile; }

  std::vector<float> storage;
  std::vector<const float*> keys;
  std::vector<const float*> values;
};

std::vector<float> RunAttention(const KernelTable& table, const Sequence& sequence,
                                const float* query, int tokens, int heads, int dim, int prefix,
                                float softcap = 0) {
  std::vector<float> output(Size(tokens, heads, dim));
  AttentionArgs<float> args;
  args.query = query;
  args.output = output.data();
  args.query_stride = args.output_stride = Size(heads, dim);
  args.tokens = tokens;
  args.heads = heads;
  args.head_dim = dim;
  args.first_position = prefix;
  args.scale = 3.0f / std::sqrt(static_cast<float>(dim));
  args.softcap = softcap;
  args.kv = {sequence.keys.data(), sequence.values.data()};
  table.attention(args);
  return output;
}

TEST_P(KernelsTest, AttentionMatchesScalarOnRandomShapes) {
  for (int trial = 0; trial < 60; ++trial) {
    const int dim = kKeyTile * static_cast<int>(random_.Between(1, 8));
    const int heads = static_cast<int>(random_.Between(1, 5));
    const int tokens = static_cast<int>(random_.Between(1, 90));
    const int prefix = static_cast<int>(random_.Between(0, 200));
    SCOPED_TRACE(testing::Message()
                 << tokens << " tokens after " << prefix << ", " << heads << " heads of " << dim);
    const Sequence sequence(random_, prefix + tokens, dim);
    const auto query = RandomFloats(random_, Size(tokens, heads, dim));
    ExpectClose(RunAttention(kernels(), sequence, query.data(), tokens, heads, dim, prefix),
                RunAttention(Scalar(), sequence, query.data(), tokens, heads, dim, prefix), 1e-5);
    const float cap = trial % 2 == 0 ? 0.5f : 50;
    ExpectClose(RunAttention(kernels(), sequence, query.data(), tokens, heads, dim, prefix, cap),
                RunAttention(Scalar(), sequence, query.data(), tokens, heads, dim, prefix, cap),
                1e-5);
  }
}

// As DeepSeek's: the first columns of a row are the value as well.
TEST_P(KernelsTest, AttentionMatchesScalarWhereValuesArePartOfTheKeys) {
  for (int trial = 0; trial < 8; ++trial) {
    const int value_dim = kKeyTile * static_cast<int>(random_.Between(1, 32));
    const int dim = value_dim + kKeyTile * static_cast<int>(random_.Between(0, 4));
    const int heads = static_cast<int>(random_.Between(1, 7));
    const int tokens = static_cast<int>(random_.Between(1, 40));
    const int prefix = static_cast<int>(random_.Between(0, 150));
    SCOPED_TRACE(testing::Message() << tokens << " tokens after " << prefix << ", " << heads
                                    << " heads of " << value_dim << " of " << dim);
    const Sequence sequence(random_, prefix + tokens, dim);
    const auto query = RandomFloats(random_, Size(tokens, heads, dim));
    const auto run = [&](const KernelTable& table) {
      std::vector<float> output(Size(tokens, heads, value_dim));
      AttentionArgs<float> args;
      args.query = query.data();
      args.output = output.data();
      args.query_stride = Size(heads, dim);
      args.output_stride = Size(heads, value_dim);
      args.tokens = tokens;
      args.heads = heads;
      args.head_dim = dim;
      args.value_dim = value_dim;
      args.first_position = prefix;
      args.scale = 1.0f / std::sqrt(static_cast<float>(dim));
      args.kv = {sequence.keys.data(), sequence.keys.data()};
      table.attention(args);
      return output;
    };
    ExpectClose(run(kernels()), run(Scalar()), 1e-5);
  }
}

TEST_P(KernelsTest, AttentionRowsDoNotDependOnTheirChunk) {
  const int dim = 48;
  const int heads = 3;
  const int length = 211;
  const Sequence sequence(random_, length, dim);
  const auto query = RandomFloats(random_, Size(length, heads, dim));
  for (const float cap : {0.0f, 2.0f}) {
    const auto together =
        RunAttention(kernels(), sequence, query.data(), length, heads, dim, 0, cap);
    for (const int chunk : {1, 7, 64, 100}) {
      for (int begin = 0; begin < length; begin += chunk) {
        const int tokens = std::min(chunk, length - begin);
        const size_t at = Size(begin, heads, dim);
        const auto part =
            RunAttention(kernels(), sequence, &query[at], tokens, heads, dim, begin, cap);
        ASSERT_TRUE(
            std::equal(part.begin(), part.end(), together.begin() + static_cast<ptrdiff_t>(at)))
            << "chunk of " << chunk << " at " << begin;
      }
    }
  }
}

TEST_P(KernelsTest, MaxOfSeesEveryLogitAndWhatIsNone) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const size_t count : {1, 5, 16, 31, 64, 77}) {
    for (size_t at = 0; at < count; ++at) {
      auto x = RandomFloats(random_, count);
      x[at] = 7;
      float max = 0;
      EXPECT_TRUE(kernels().max_of(x.data(), count, &max));
      EXPECT_EQ(max, 7);
      for (const float bad : {-infinity, std::numeric_limits<float>::quiet_NaN()}) {
        x[at] = bad;
        EXPECT_FALSE(kernels().max_of(x.data(), count, &max)) << bad << " at " << at;
        EXPECT_TRUE(count == 1 || std::isfinite(max));
      }
      x[at] = infinity;
      EXPECT_FALSE(kernels().max_of(x.data(), count, &max));
      EXPECT_EQ(max, infinity);
    }
  }
}

TEST_P(KernelsTest, SumExpMatchesScalar) {
  for (const size_t count : {1, 16, 33, 1000}) {
    auto x = RandomFloats(random_, count);
    for (float& value : x) value *= 40;
    x[0] = 40;
    const double expected = Scalar().sum_exp(x.data(), count, 40);
    EXPECT_NEAR(kernels().sum_exp(x.data(), count, 40), expected, 1e-6 * expected);
  }
}

TEST_P(KernelsTest, WeighMatchesScalarAndKeepsTheOrder) {
  for (const size_t count : {1, 16, 33, 1000}) {
    for (const float scale : {0.0F, 0.01F, 1.44F, 1e30F}) {
      auto x = RandomFloats(random_, count);
      for (float& value : x) value *= 20;
      x[0] = 20;
      x[count / 2] = count > 1 ? -std::numeric_limits<float>::infinity() : 20;
      std::vector<uint32_t> weights(count), expected(count);
      std::vector<uint16_t> buckets(count), unused(count);
      uint64_t sum = 0;
      const uint64_t total =
          kernels().weigh(x.data(), count, 20, scale, weights.data(), buckets.data());
      Scalar().weigh(x.data(), count, 20, scale, expected.data(), unused.data());
      EXPECT_EQ(weights[0], kUnitWeight);
      EXPECT_EQ(buckets[0], 0);
      for (size_t i = 0; i < count; ++i) {
        sum += weights[i];
        ASSERT_NEAR(weights[i], expected[i], 2 + 1e-5 * expected[i]) << x[i];
        ASSERT_LT(buckets[i], kWeightBuckets);
        for (size_t k = 0; k < std::min<size_t>(count, 40); ++k) {
          if (x[i] <= x[k]) {
            ASSERT_GE(buckets[i], buckets[k]);
            ASSERT_LE(weights[i], weights[k]);
          }
        }
      }
      EXPECT_EQ(total, sum);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, KernelsTest, testing::ValuesIn(AvailableKernels()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST(FindKernelsTest, KnowsNamesAndTakesTheBestByDefault) {
  EXPECT_STREQ(FindKernels("scalar")->name, "scalar");
  EXPECT_EQ(FindKernels(""), AvailableKernels().back());
  EXPECT_EQ(FindKernels("mmx"), nullptr);
}

}  // namespace
}  // namespace baton::kernels
