#include "common/engine/weights/weight_conversion.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "common/model/make_model.h"

namespace baton {
namespace {

// Every finite value of a 16-bit format survives the way to float32 and back.
void ExpectExact(DType dtype, uint16_t (*round)(float)) {
  std::vector<uint16_t> all;
  for (uint32_t bits = 0; bits < 65536; ++bits) all.push_back(static_cast<uint16_t>(bits));
  std::vector<float> floats(all.size());
  ConvertToFloat(dtype, std::as_bytes(std::span(all)), floats);
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
  ConvertToFloat(DType::kF16, std::as_bytes(std::span(f16)), out);
  EXPECT_EQ(out[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(out[1], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_EQ(out[3], 0x1p-24f);
  EXPECT_TRUE(std::signbit(out[4]));
  const std::vector<uint16_t> bf16 = {0x7f80, 0xff80, 0x7fc1};
  out.resize(bf16.size());
  ConvertToFloat(DType::kBF16, std::as_bytes(std::span(bf16)), out);
  EXPECT_EQ(out[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(out[1], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(out[2]));
}

TEST(ConvertToFloatTest, ReadsTensorsAtOddAddresses) {
  const std::vector<float> values = {1.5f, -2};
  std::vector<std::byte> bytes(1 + 2 * sizeof(float));
  std::memcpy(&bytes[1], values.data(), 2 * sizeof(float));
  std::vector<float> out(2);
  ConvertToFloat(DType::kF32, std::span(bytes).subspan(1), out);
  EXPECT_EQ(out, values);
}

TEST(ConvertWeightsTest, RoundsWhatIsWiderAndCopiesWhatIsNot) {
  const std::vector<float> values = {1.0f, 1.0f + 0x1p-8f, 1.0f + 0x1.8p-7f, -3.0e38f};
  std::vector<uint16_t> narrow(values.size());
  ConvertWeights(DType::kF32, std::as_bytes(std::span(values)), ElementType::kBFloat16,
                 std::as_writable_bytes(std::span(narrow)));
  EXPECT_EQ(narrow, (std::vector<uint16_t>{0x3f80, 0x3f80, 0x3f82, 0xff62}));
  const std::vector<uint16_t> f16 = {0x3c00, 0x3c01, 0xfbff};  // 1, 1 + 2^-10, -65504.
  narrow.resize(f16.size());
  ConvertWeights(DType::kF16, std::as_bytes(std::span(f16)), ElementType::kBFloat16,
                 std::as_writable_bytes(std::span(narrow)));
  EXPECT_EQ(narrow, (std::vector<uint16_t>{0x3f80, 0x3f80, 0xc780}));
  const std::vector<uint16_t> nans = {0x7f81, 0xffff, 0x0001};
  narrow.resize(nans.size());
  ConvertWeights(DType::kBF16, std::as_bytes(std::span(nans)), ElementType::kBFloat16,
                 std::as_writable_bytes(std::span(narrow)));
  EXPECT_EQ(narrow, nans);
}

// More than are converted at once.
TEST(ConvertWeightsTest, LongTensorsAreRoundedToTheLastElement) {
  std::vector<float> values(10'001);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 7;
  std::vector<uint16_t> narrow(values.size());
  ConvertWeights(DType::kF32, std::as_bytes(std::span(values)), ElementType::kBFloat16,
                 std::as_writable_bytes(std::span(narrow)));
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(narrow[i], FloatToBf16(values[i])) << i;
}

TEST(EmbeddingTableTest, GathersRowsInTheirDtype) {
  std::vector<uint16_t> values(12);
  for (size_t i = 0; i < values.size(); ++i) values[i] = FloatToBf16(static_cast<float>(i));
  EmbeddingTable table(DType::kBF16, 4, 3);
  ASSERT_EQ(table.bytes().size(), values.size() * sizeof(uint16_t));
  std::memcpy(table.bytes().data(), values.data(), table.bytes().size());
  const std::vector<int32_t> tokens = {3, 0, 3};
  std::vector<float> out(9);
  table.Gather(tokens, out.data());
  EXPECT_EQ(out, (std::vector<float>{9, 10, 11, 0, 1, 2, 9, 10, 11}));
}

}  // namespace
}  // namespace baton
