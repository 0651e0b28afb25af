// What is kept as bfloat16 gives the bits of the same numbers kept as float32.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/engine/kernels/kernels.h"

namespace baton::kernels {
namespace {

// Elements of a [rows, columns, depth] array.
size_t Size(size_t rows, size_t columns, size_t depth = 1) { return rows * columns * depth; }

const KernelTable& Scalar() { return *FindKernels("scalar"); }

class KernelsBf16Test : public testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& kernels() const { return *GetParam(); }

  std::vector<float> RandomFloats(size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(random_.Uniform() * 2 - 1);
    return values;
  }
  std::vector<Bf16> Narrow(const std::vector<float>& values) const {
    std::vector<Bf16> narrow(values.size());
    kernels().to_bf16(values.data(), values.size(), narrow.data());
    return narrow;
  }
  std::vector<float> Widen(const std::vector<Bf16>& values) const {
    std::vector<float> wide(values.size());
    kernels().from_bf16(values.data(), values.size(), wide.data());
    return wide;
  }
  // Bits, since NaNs equal nothing.
  static std::vector<uint32_t> Bits(const std::vector<float>& values) {
    std::vector<uint32_t> bits;
    bits.reserve(values.size());
    for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
    return bits;
  }

  Random random_{20261122};
};

TEST_P(KernelsBf16Test, WideningIsTheUpperHalfOfAFloat) {
  std::vector<Bf16> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<uint16_t>(i);
  const std::vector<uint32_t> bits = Bits(Widen(all));
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(bits[i], static_cast<uint32_t>(i) << 16);
}

TEST_P(KernelsBf16Test, RoundingGoesToTheNearestAndThenToEven) {
  const auto rounded = [&](uint32_t bits) { return Narrow({std::bit_cast<float>(bits)})[0].bits; };
  EXPECT_EQ(rounded(0x3f807fff), 0x3f80);
  EXPECT_EQ(rounded(0x3f808000), 0x3f80) << "a tie: down to even";
  EXPECT_EQ(rounded(0x3f808001), 0x3f81);
  EXPECT_EQ(rounded(0x3f818000), 0x3f82) << "a tie: up to even";
  EXPECT_EQ(rounded(0xbf818000), 0xbf82);
  EXPECT_EQ(rounded(0x00000001), 0x0000) << "the smallest subnormal";
  EXPECT_EQ(rounded(0x80000000), 0x8000);
  EXPECT_EQ(rounded(0x7f7fffff), 0x7f80) << "past the largest: infinity";
  EXPECT_EQ(rounded(0x7f800000), 0x7f80);
  EXPECT_EQ(rounded(0xff800000), 0xff80);
  for (const uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(Widen(Narrow({std::bit_cast<float>(nan)}))[0])) << nan;
  }
}

TEST_P(KernelsBf16Test, EveryTableRoundsAlikeWhateverTheCount) {
  for (size_t count = 0; count < 70; ++count) {
    std::vector<float> x(count);
    for (float& value : x) value = std::bit_cast<float>(static_cast<uint32_t>(random_.Next()));
    std::vector<Bf16> expected(count);
    Scalar().to_bf16(x.data(), count, expected.data());
    EXPECT_EQ(Bits(Widen(Narrow(x))), Bits(Widen(expected))) << count;
    std::vector<float> in_place = x;
    in_place.push_back(1.0f / 3);
    kernels().round_to_bf16(in_place.data(), count);
    EXPECT_EQ(in_place.back(), 1.0f / 3) << "past the end";
    in_place.pop_back();
    EXPECT_EQ(Bits(in_place), Bits(Widen(expected))) << count;
  }
}

TEST_P(KernelsBf16Test, RowsOfPanelsAreWhatWasPacked) {
  const int width = kernels().panel_width;
  for (const int outputs : {1, width - 1, width, 3 * width + 5}) {
    const int inputs = 7;
    const auto weights = RandomFloats(Size(outputs, inputs));
    const auto narrow = Narrow(weights);
    std::vector<float> panels(PackedSize(outputs, inputs, width));
    std::vector<Bf16> narrow_panels(panels.size());
    // In two parts, as loading does.
    const int half = outputs / 2;
    for (const auto& [begin, end] : {std::pair{0, half}, std::pair{half, outputs}}) {
      const auto at = Size(begin, inputs);
      PackRows(weights.data() + at, begin, end - begin, inputs, width, panels.data());
      PackRows(narrow.data() + at, begin, end - begin, inputs, width, narrow_panels.data());
    }
    for (int row = 0; row < outputs; ++row) {
      std::vector<float> out(static_cast<size_t>(inputs));
      std::vector<float> narrow_out(out.size());
      UnpackRow(PackedMatrix{panels.data(), outputs, inputs}, row, width, out.data());
      UnpackRow(PackedBf16Matrix{narrow_panels.data(), outputs, inputs}, row, width,
                narrow_out.data());
      const auto begin = weights.begin() + ptrdiff_t{row} * inputs;
      EXPECT_EQ(out, std::vector<float>(begin, begin + inputs));
      EXPECT_EQ(narrow_out, Widen(Narrow(out)));
    }
  }
}

// Scales of blocks that begin before the matrix, and rows whose scales differ.
TEST_P(KernelsBf16Test, LinearOfFp8EqualsThatOfTheScaledWeights) {
  const int width = kernels().panel_width;
  for (int trial = 0; trial < 60; ++trial) {
    const int outputs = static_cast<int>(random_.Between(1, 200));
    const int inputs = static_cast<int>(random_.Between(1, trial < 50 ? 700 : 2600));
    const int rows = static_cast<int>(random_.Between(1, 40));
    const int offset = static_cast<int>(random_.Between(0, kScaleBlock - 1));
    SCOPED_TRACE(testing::Message() << outputs << "x" << inputs << "+" << offset << ", " << rows);
    std::vector<E4m3> weights(Size(outputs, inputs));
    for (E4m3& weight : weights) {
      do {
        weight.bits = static_cast<uint8_t>(random_.Next());
      } while ((weight.bits & 0x7f) == 0x7f);
    }
    std::vector<E4m3> panels(PackedSize(outputs, inputs, width));
    PackedE4m3Matrix matrix{panels.data(), outputs, inputs, nullptr, offset};
    const int blocks = matrix.blocks();
    const auto scales = RandomFloats(Size(outputs, blocks));
    std::vector<float> packed_scales(PackedSize(outputs, blocks, width));
    PackRows(weights.data(), 0, outputs, inputs, width, panels.data());
    PackRows(scales.data(), 0, outputs, blocks, width, packed_scales.data());
    matrix.scales = packed_scales.data();
    std::vector<float> wide(weights.size());
    for (int row = 0; row < outputs; ++row) {
      for (int i = 0; i < inputs; ++i) {
        const auto at = Size(row, inputs) + static_cast<size_t>(i);
        wide[at] = Widened(weights[at]) *
                   scales[Size(row, blocks) + static_cast<size_t>((i + offset) / kScaleBlock)];
      }
      std::vector<float> unpacked(static_cast<size_t>(inputs));
      UnpackRow(matrix, row, width, unpacked.data());
      EXPECT_EQ(std::memcmp(unpacked.data(), &wide[Size(row, inputs)], unpacked.size() * 4), 0);
    }
    std::vector<float> wide_panels(panels.size());
    PackRows(wide.data(), 0, outputs, inputs, width, wide_panels.data());
    const auto x = RandomFloats(Size(rows, inputs));
    std::vector<float> y(Size(rows, outputs));
    std::vector<float> expected(y.size());
    const int end = (outputs + width - 1) / width;
    const auto stride = static_cast<size_t>(outputs);
    kernels().linear_e4m3(matrix, x.data(), rows, 0, end, y.data(), stride);
    kernels().linear({wide_panels.data(), outputs, inputs}, x.data(), rows, 0, end, expected.data(),
                     stride);
    EXPECT_EQ(Bits(y), Bits(expected));
  }
}

TEST(E4m3Test, WidensToWhatTheFormatSays) {
  EXPECT_EQ(Widened({0x00}), 0);
  EXPECT_EQ(Widened({0x01}), 0x1p-9f);
  EXPECT_EQ(Widened({0x07}), 7 * 0x1p-9f) << "the largest subnormal";
  EXPECT_EQ(Widened({0x08}), 0x1p-6f);
  EXPECT_EQ(Widened({0x38}), 1);
  EXPECT_EQ(Widened({0xbc}), -1.5f);
  EXPECT_EQ(Widened({0x7e}), 448) << "the largest";
  EXPECT_TRUE(std::isnan(Widened({0x7f})) && std::isnan(Widened({0xff})));
}

TEST_P(KernelsBf16Test, LinearEqualsThatOfTheWidenedWeights) {
  const int width = kernels().panel_width;
  for (int trial = 0; trial < 60; ++trial) {
    const int outputs = static_cast<int>(random_.Between(1, 300));
    const int inputs = static_cast<int>(random_.Between(1, 700));
    const int rows = static_cast<int>(random_.Between(1, 40));
    SCOPED_TRACE(testing::Message() << outputs << "x" << inputs << ", rows " << rows);
    const auto narrow = Narrow(RandomFloats(Size(outputs, inputs)));
    const auto wide = Widen(narrow);
    std::vector<Bf16> narrow_panels(PackedSize(outputs, inputs, width));
    std::vector<float> wide_panels(narrow_panels.size());
    PackRows(narrow.data(), 0, outputs, inputs, width, narrow_panels.data());
    PackRows(wide.data(), 0, outputs, inputs, width, wide_panels.data());
    const auto x = RandomFloats(Size(rows, inputs));
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> y(Size(rows, outputs), nan);
    std::vector<float> expected(y.size(), nan);
    const int panels = (outputs + width - 1) / width;
    const auto stride = static_cast<size_t>(outputs);
    kernels().linear_bf16({narrow_panels.data(), outputs, inputs}, x.data(), rows, 0, panels,
                          y.data(), stride);
    kernels().linear({wide_panels.data(), outputs, inputs}, x.data(), rows, 0, panels,
                     expected.data(), stride);
    ASSERT_EQ(y, expected);
  }
}

TEST_P(KernelsBf16Test, AttentionEqualsThatOfTheWidenedKeysAndValues) {
  for (int trial = 0; trial < 40; ++trial) {
    const int dim = kKeyTile * static_cast<int>(random_.Between(1, 8));
    const int heads = static_cast<int>(random_.Between(1, 5));
    const int tokens = static_cast<int>(random_.Between(1, 90));
    const int prefix = static_cast<int>(random_.Between(0, 200));
    SCOPED_TRACE(testing::Message()
                 << tokens << " tokens after " << prefix << ", " << heads << " heads of " << dim);
    const auto tiles = static_cast<size_t>((prefix + tokens + kKeyTile - 1) / kKeyTile);
    const size_t tile_elements = Size(kKeyTile, dim);
    const auto narrow = Narrow(RandomFloats(2 * tiles * tile_elements));
    const auto wide = Widen(narrow);
    std::vector<const Bf16*> narrow_tiles;
    std::vector<const float*> wide_tiles;
    for (size_t i = 0; i < 2 * tiles; ++i) {
      narrow_tiles.push_back(&narrow[i * tile_elements]);
      wide_tiles.push_back(&wide[i * tile_elements]);
    }
    const auto query = RandomFloats(Size(tokens, heads, dim));
    const auto run = [&](auto attention, const auto& tile_list) {
      using Element = std::remove_cvref_t<decltype(*tile_list[0])>;
      std::vector<float> output(query.size());
      AttentionArgs<Element> args;
      args.query = query.data();
      args.output = output.data();
      args.query_stride = args.output_stride = Size(heads, dim);
      args.tokens = tokens;
      args.heads = heads;
      args.head_dim = dim;
      args.first_position = prefix;
      args.scale = 3.0f / std::sqrt(static_cast<float>(dim));
      args.softcap = static_cast<float>(prefix % 2);
      args.kv = {tile_list.data(), tile_list.data() + tiles};
      attention(args);
      return output;
    };
    ASSERT_EQ(run(kernels().attention_bf16, narrow_tiles), run(kernels().attention, wide_tiles));
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, KernelsBf16Test, testing::ValuesIn(AvailableKernels()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace baton::kernels
