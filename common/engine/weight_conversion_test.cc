#include "common/engine/weight_conversion.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/model/float_formats.h"

namespace baton {
namespace {

template <typename T>
TensorView ViewOf(const std::vector<T>& values, DType dtype, int64_t columns) {
  const auto count = static_cast<int64_t>(values.size());
  return {dtype, {count / columns, columns}, std::as_bytes(std::span(values))};
}

// Every finite value of a 16-bit format survives the way to float32 and back.
void ExpectExact(DType dtype, uint16_t (*round)(float)) {
  std::vector<uint16_t> all;
  for (uint32_t bits = 0; bits < 65536; ++bits) all.push_back(static_cast<uint16_t>(bits));
  std::vector<float> floats(all.size());
  ConvertToFloat(ViewOf(all, dtype, 1), 0, floats);
  int finite = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!std::isfinite(floats[i])) continue;
    ++finite;
    ASSERT_EQ(round(floats[i]), all[i]) << floats[i];
  }
  EXPECT_GT(finite, 60000);
}

TEST(ConvertToFloatTest, TakesBf16Exactly) {
  ExpectExact(DType::kBF16, FloatToBf16);
  EXPECT_EQ(FloatToBf16(1.0f), 0x3f80);
}

TEST(ConvertToFloatTest, TakesF16Exactly) {
  ExpectExact(DType::kF16, FloatToF16);
  EXPECT_EQ(FloatToF16(1.0f), 0x3c00);
  EXPECT_EQ(FloatToF16(65504.0f), 0x7bff);
}

TEST(ConvertToFloatTest, KeepsWhatIsNotFinite) {
  const std::vector<uint16_t> f16 = {0x7c00, 0xfc00, 0x7e01, 0x0001, 0x8000};
  std::vector<float> out(f16.size());
  ConvertToFloat(ViewOf(f16, DType::kF16, 1), 0, out);
  EXPECT_EQ(out[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(out[1], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_EQ(out[3], 0x1p-24f);
  EXPECT_TRUE(std::signbit(out[4]));
  const std::vector<uint16_t> bf16 = {0x7f80, 0xff80, 0x7fc1};
  out.resize(bf16.size());
  ConvertToFloat(ViewOf(bf16, DType::kBF16, 1), 0, out);
  EXPECT_EQ(out[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(out[1], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(out[2]));
}

TEST(ConvertToFloatTest, StartsAtTheGivenElement) {
  const std::vector<float> values = {1, 2, 3, 4, 5};
  std::vector<float> out(2);
  ConvertToFloat(ViewOf(values, DType::kF32, 1), 3, out);
  EXPECT_EQ(out, (std::vector<float>{4, 5}));
}

TEST(ConvertToFloatTest, ReadsTensorsAtOddAddresses) {
  const std::vector<float> values = {1.5f, -2};
  std::vector<std::byte> bytes(1 + 2 * sizeof(float));
  std::memcpy(&bytes[1], values.data(), 2 * sizeof(float));
  std::vector<float> out(2);
  ConvertToFloat({DType::kF32, {2}, std::span(bytes).subspan(1)}, 0, out);
  EXPECT_EQ(out, values);
}

TEST(EmbeddingTableTest, GathersRowsInTheirDtype) {
  std::vector<uint16_t> values(12);
  for (size_t i = 0; i < values.size(); ++i) values[i] = FloatToBf16(static_cast<float>(i));
  const EmbeddingTable table(ViewOf(values, DType::kBF16, 3));
  const std::vector<int32_t> tokens = {3, 0, 3};
  std::vector<float> out(9);
  table.Gather(tokens, out.data());
  EXPECT_EQ(out, (std::vector<float>{9, 10, 11, 0, 1, 2, 9, 10, 11}));
}

}  // namespace
}  // namespace baton
